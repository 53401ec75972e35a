"""The activity record of an inference request, which has no text of the prompt or the answer."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.prompt import FreeObject


class VerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """One policy's verdict on a call's request or answer. `probability_basis_points` is a score if the policy
    isn't calibrated, and None if the judge gave none, or read only a part of the text and that part didn't
    match."""

    policy_id: str
    version: int
    direction: str
    mode: str
    probability_basis_points: int | None
    threshold_basis_points: int
    matched: bool
    duration_ms: int
    judged_at_ms: int
    # What no judge can read, such as "image".
    unread: tuple[str, ...] = ()
    # None without a first judge's score. If this score rules out a match, the main judge isn't asked, and
    # `probability_basis_points` is this score too.
    first_basis_points: int | None = None


class ActivityRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One inference request that has ended. Of requests rejected for the same reason within a short time, the
    first has its own record and one more stands for all others, with the data of the last one and the mean
    duration."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    # "chat_create", "response_create" or "message_create"
    operation: str
    model: str
    streamed: bool
    started_at_ms: int
    duration_us: int
    # None if no event of an answer arrived.
    first_piece_us: int | None
    status: int
    error_code: str | None
    finish: str | None
    estimated: bool
    hold_picousd: int | None
    cost_picousd: int | None
    # "settled", "released" or "unsettled"; "none" if the call has no reservation
    settlement: str
    # None if the call wasn't sent, for example because a policy denied it.
    backend: str | None
    replica: str | None
    # The model's first backend in the catalogue.
    declared_backend: str = ""
    # The charged usage; None if the call wasn't settled, or only its verdicts were charged.
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    web_searches: int | None = None
    input_audio_tokens: int | None = None
    output_audio_tokens: int | None = None
    service_tier: str | None = None
    verdicts: tuple[VerdictRecord, ...] = ()
    # The backend's last usage report, unchanged, and the price that the backend states.
    reported_usage: FreeObject | None = None
    reported_cost_picousd: int | None = None
    # Until the call was sent, then the backend's time, and the gateway's own without backend and judge. None
    # if the call wasn't sent.
    dispatched_us: int | None = None
    upstream_us: int | None = None
    overhead_us: int | None = None
    # Without text of the request.
    error_param: str | None = None
    error_message: str | None = None
    # More than one only for repeated rejections.
    requests: int = 1


# Many records by field, because work on columns can run in C.
RecordColumns: TypeAlias = Mapping[str, Sequence[Any]]
