"""The activity record of one inference request. It contains no text of prompt or answer."""

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.prompt import FreeObject


class VerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """One policy's verdict on one side of a call. The probability is None if there is none."""

    policy_id: str
    version: int
    direction: str
    mode: str
    probability_basis_points: int | None
    threshold_basis_points: int
    matched: bool
    duration_ms: int
    judged_at_ms: int
    # The kinds of content in the text's place that no judge reads, such as "image".
    unread: tuple[str, ...] = ()
    # The score of the first judge, if there is one. If it settled the question, it is the probability too.
    first_basis_points: int | None = None


class ActivityRecord(msgspec.Struct, frozen=True, gc=False):
    """One inference request, recorded when it has ended; of repeated refusals, the last one. Metrics,
    the line in the log and the row in the database are made of it, many together."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    # chat_create, response_create or message_create
    operation: str
    model: str
    streamed: bool
    started_at_ms: int
    duration_us: int
    # The time until the first piece was sent; None if no piece was sent.
    first_piece_us: int | None
    # The status that the caller saw.
    status: int
    # The code of the error if the call was refused or failed.
    error_code: str | None
    finish: str | None
    estimated: bool
    hold_picousd: int | None
    cost_picousd: int | None
    # settled, released, unsettled; "none" if the call has no reservation
    settlement: str
    # None if the call was not dispatched, for example because a policy denied it.
    backend: str | None
    # None if no replica answered.
    replica: str | None
    # The backend that the catalogue names first for the model.
    declared_backend: str = ""
    # The charged usage; None if the call was not settled, or for its verdicts only.
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
    # The backend's last report as it came, and its own price in it.
    reported_usage: FreeObject | None = None
    reported_cost_picousd: int | None = None
    # The time until the call went to its backend, how long the backend worked, and what of the
    # call's time neither the backend nor the judge took. None if it was not dispatched.
    dispatched_us: int | None = None
    upstream_us: int | None = None
    overhead_us: int | None = None
    # What of the cost is the price of verdicts, which no backend bills.
    verdict_picousd: int = 0
    # How many requests the record stands for: more than one only for repeated refusals.
    requests: int = 1
