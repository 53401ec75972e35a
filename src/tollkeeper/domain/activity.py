"""Defines the activity record of one inference request. It contains no text of prompt or answer."""

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.prompt import FreeObject


class VerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """Records one policy's verdict on one side of a call. The probability is None if it is
    missing."""

    policy_id: str
    version: int
    direction: str
    mode: str
    probability_basis_points: int | None
    threshold_basis_points: int
    matched: bool
    duration_ms: int
    judged_at_ms: int
    # The kinds of content that no judge reads, such as "image".
    unread: tuple[str, ...] = ()
    # The score of the first judge, if there is one. If it settled the question, it is the
    # probability too.
    first_basis_points: int | None = None


class ActivityRecord(msgspec.Struct, frozen=True, gc=False):
    """Records one inference request when it has ended; of repeated rejections, the last one.
    Metrics, the log line and the database row are created from it, many together."""

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
    # The time until the first piece was sent; None if no piece was sent.
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
    # None if the call was not dispatched, for example because a policy denied it.
    backend: str | None
    # None if no replica answered.
    replica: str | None
    # The model's first backend in the catalogue.
    declared_backend: str = ""
    # The charged usage; None if the call was not settled, or only for its verdicts.
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
    # The backend's last report, unchanged, and its own price.
    reported_usage: FreeObject | None = None
    reported_cost_picousd: int | None = None
    # The time until the call was sent to its backend, the backend's time, and the time that neither
    # the backend nor the judge took. None if the call was not dispatched.
    dispatched_us: int | None = None
    upstream_us: int | None = None
    overhead_us: int | None = None
    # The part of the cost that is for verdicts, which no backend bills.
    verdict_picousd: int = 0
    # The number of requests in this record: more than one only for repeated rejections.
    requests: int = 1
