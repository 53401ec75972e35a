"""What is written down about one inference request. No prompt and no answer."""

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import Usage


class VerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """One policy's verdict on one side of a call. `probability` is None where none was had."""

    policy_id: str
    version: int
    direction: str
    mode: str
    probability_basis_points: int | None
    threshold_basis_points: int
    matched: bool
    duration_ms: int
    judged_at_ms: int


class ActivityRecord(msgspec.Struct, frozen=True, gc=False):
    """One request's whole story, written when it has ended."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    # chat_create or response_create
    operation: str
    model: str
    streamed: bool
    started_at_ms: int
    duration_ms: int
    # Until the first piece went out; None where none did.
    first_piece_ms: int | None
    # The status that the caller saw, and the error's code where it was refused or broke off.
    status: int
    error_code: str | None
    finish: str | None
    usage: Usage | None
    estimated: bool
    hold_picousd: int | None
    cost_picousd: int | None
    # settled, released, unsettled; none where nothing was reserved
    settlement: str
    backend: str | None
    replica: str | None
    verdicts: tuple[VerdictRecord, ...] = ()
    # The backend's last report as it came, and its own price in it.
    reported_usage: FreeObject | None = None
    reported_cost_picousd: int | None = None
