"""What a decision must be, computed naively: one request after the other, from plain sums.

It shares no step with `domain.admission.decide`, so that a mistake would have to be made twice.
"""

from collections.abc import Sequence

from tollkeeper.domain.access import KeyStatus
from tollkeeper.domain.admission import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    AdmissionRequest,
    Cap,
    CapPeriod,
    ProjectState,
    Refusal,
    Spend,
)


def expected_refusals(
    state: AccountState, requests: Sequence[AdmissionRequest], *, now_us: int, month: int
) -> list[Refusal | None]:
    month = max(month, state.spend.month)
    admitted: list[AdmissionRequest] = []
    refusals: list[Refusal | None] = []
    for request in requests:
        refusal = _refusal(state, admitted, request, now_us, month)
        refusals.append(refusal)
        if refusal is None:
            admitted.append(request)
    return refusals


def _refusal(
    state: AccountState,
    admitted: list[AdmissionRequest],
    request: AdmissionRequest,
    now_us: int,
    month: int,
) -> Refusal | None:
    project = state.projects.get(request.project_id)
    if project is None or state.keys.get(request.key_id) != KeyStatus.ACTIVE:
        return Refusal.KEY_NOT_ACTIVE
    if project.archived:
        return Refusal.PROJECT_ARCHIVED
    unspent = sum(
        (state.available_picousd, state.spend.held_picousd, state.spend.unsettled_picousd)
    )
    bound = state.overage_bound_picousd
    if state.stopped or (bound is not None and unspent + bound < 0):
        return Refusal.OVERAGE
    here = [one for one in admitted if one.project_id == request.project_id]
    taken = sum(one.hold_picousd for one in admitted)
    taken_here = sum(one.hold_picousd for one in here)
    left = state.available_picousd - taken
    if left < 0 or left < request.hold_picousd:
        return Refusal.CREDIT
    if _over(state.cap, state.spend, taken + request.hold_picousd, month):
        return Refusal.ORGANIZATION_CAP
    if _over(project.cap, project.spend, taken_here + request.hold_picousd, month):
        return Refusal.PROJECT_CAP
    if (len(here) + 1) * RATE_UNITS_PER_REQUEST > rate_level(project, now_us):
        return Refusal.RATE
    if project.live_holds + len(here) + 1 > project.concurrency:
        return Refusal.CONCURRENCY
    return None


def _over(cap: Cap | None, spend: Spend, more: int, month: int) -> bool:
    if cap is None:
        return False
    if cap.period == CapPeriod.TOTAL:
        before = spend.held_picousd + spend.unsettled_picousd + spend.settled_picousd
    elif spend.month == month:
        before = spend.month_held_picousd + spend.month_settled_picousd
    else:
        before = 0
    return before + more > cap.amount_picousd


def rate_level(project: ProjectState, now_us: int) -> int:
    """One request a minute gains one unit a microsecond."""
    gained = max(0, now_us - project.rate_at_us) * project.requests_per_minute
    return min(project.requests_per_minute * RATE_UNITS_PER_REQUEST, project.rate_units + gained)
