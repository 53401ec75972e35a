"""Defines the activity record of an inference request. The record contains no text of the prompt or
the answer."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.prompt import FreeObject


class VerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """Records one policy's verdict (result) on the request or the answer of a call. The judge is
    the model that answers policy questions. `probability_basis_points` is the policy's value, which
    is a score if the policy is not calibrated. It is None if the judge gave no score, or if the
    judge read only a part of the text and that part did not match."""

    policy_id: str
    version: int
    direction: str
    mode: str
    probability_basis_points: int | None
    threshold_basis_points: int
    matched: bool
    duration_ms: int
    judged_at_ms: int
    # The kinds of content in the call that no judge can read, such as "image".
    unread: tuple[str, ...] = ()
    # The score of the first judge; None if no first judge is configured or it gave no score. If
    # this score rules out a match, the main judge is not asked, and `probability_basis_points` is
    # this score too.
    first_basis_points: int | None = None


class ActivityRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Describes one inference request that has ended. If requests are rejected for the same reason
    within a short time, the first rejection has its own record, and one more record stands for all
    others. That record has the data of the last rejection and the mean duration. The database row is
    created from the record. Metrics and log lines are created from the same values as columns
    (`RecordColumns`)."""

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
    # The time until the first events of the answer arrived from the backend; None if none arrived.
    first_piece_us: int | None
    # The status that the client received.
    status: int
    # The error code if the call was rejected or failed.
    error_code: str | None
    finish: str | None
    estimated: bool
    hold_picousd: int | None
    cost_picousd: int | None
    # "settled", "released" or "unsettled"; "none" if the call has no reservation
    settlement: str
    # None if the call was not sent to a backend, for example because a policy denied it.
    backend: str | None
    # None if no replica answered.
    replica: str | None
    # The model's first backend in the catalogue.
    declared_backend: str = ""
    # The charged usage. None if the call was not settled, or was charged only for its verdicts.
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
    # The time until the call was sent to its backend, the time that the backend took, and the time
    # that the gateway itself took (without backend and judge). All are None if the call was not
    # sent.
    dispatched_us: int | None = None
    upstream_us: int | None = None
    overhead_us: int | None = None
    # The field that the error names, and the error's message without text of the request.
    error_param: str | None = None
    error_message: str | None = None
    # The number of requests that this record stands for. Only a record of repeated rejections
    # stands for more than one request.
    requests: int = 1


# The values of many records, by field. Work on columns can run in C.
RecordColumns: TypeAlias = Mapping[str, Sequence[Any]]
