"""Computes the expected decisions naively: one request after the other, from plain sums.

This module shares no step with `money.holds.rule.decide`, so that both are unlikely to have the same mistake.
"""

from collections.abc import Sequence
from datetime import date

from tollkeeper.core.access import KeyId, KeyStatus
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    AdmissionRequest,
    ProjectState,
    Refusal,
)


def expected_refusals(
    state: AccountState, requests: Sequence[AdmissionRequest], *, now_us: int
) -> list[Refusal | None]:
    admitted: list[AdmissionRequest] = []
    refusals: list[Refusal | None] = []
    for request in requests:
        refusal = _refusal(state, admitted, request, now_us)
        refusals.append(refusal)
        if refusal is None:
            admitted.append(request)
    return refusals


def _refusal(
    state: AccountState,
    admitted: list[AdmissionRequest],
    request: AdmissionRequest,
    now_us: int,
) -> Refusal | None:
    project = state.projects.get(request.project_id)
    by_name = _refused_by_name(state, project, request)
    if project is None or by_name is not None:
        return by_name
    unspent = sum(
        (state.available_picousd, state.spend.held_picousd, state.spend.unsettled_picousd)
    )
    bound = state.overage_bound_picousd
    if state.stopped or (bound is not None and unspent + bound < 0):
        return Refusal.OVERAGE
    here = [one for one in admitted if one.project_id == request.project_id]
    taken = sum(one.hold_picousd for one in admitted)
    left = state.available_picousd - taken
    if left < 0 or left < request.hold_picousd:
        return Refusal.CREDIT
    if bound is not None:
        worst = state.overage_in_flight_picousd + sum(
            one.overage_max_picousd for one in (*admitted, request)
        )
        if left - request.hold_picousd - worst < -bound:
            return Refusal.OVERAGE_IN_FLIGHT
    by_cap = _refused_by_cap(state, admitted, request)
    if by_cap is not None:
        return by_cap
    if (len(here) + 1) * RATE_UNITS_PER_REQUEST > rate_level(project, now_us):
        return Refusal.RATE
    if project.live_holds + len(here) + 1 > project.concurrency:
        return Refusal.CONCURRENCY
    return None


def _refused_by_name(
    state: AccountState, project: ProjectState | None, request: AdmissionRequest
) -> Refusal | None:
    if project is None or state.keys.get(request.key_id) != KeyStatus.ACTIVE:
        return Refusal.KEY_NOT_ACTIVE
    if project.archived:
        return Refusal.PROJECT_ARCHIVED
    lists = (project.models, state.key_models.get(request.key_id, ()))
    # Equality is enough, because the strategies generate no entries with `*`.
    if any(entries and request.model not in entries for entries in lists):
        return Refusal.MODEL_NOT_ALLOWED
    return None


def _refused_by_cap(
    state: AccountState, admitted: list[AdmissionRequest], request: AdmissionRequest
) -> Refusal | None:
    key = _first_key(state, request)
    owners = (
        (None, Refusal.ORGANIZATION_CAP, admitted),
        (
            request.project_id,
            Refusal.PROJECT_CAP,
            [one for one in admitted if one.project_id == request.project_id],
        ),
        (key, Refusal.KEY_CAP, [one for one in admitted if _first_key(state, one) == key]),
    )
    for owner, refusal, before in owners:
        for period in ("day", "week", "month", "total"):
            cap = state.caps.get((owner, CapPeriod(period)))
            if cap is None:
                continue
            counted = cap.held_picousd + cap.settled_picousd
            counted += sum(one.hold_picousd for one in before)
            if counted + request.hold_picousd > cap.amount_picousd:
                return refusal
    return None


def _first_key(state: AccountState, request: AdmissionRequest) -> KeyId:
    return state.first_keys.get(request.key_id, request.key_id)


def number_of(period: str, day: date) -> int:
    """Returns the number of the period with this day, computed with the standard library's calendar."""
    if period == "day":
        return (day - date(1970, 1, 1)).days
    if period == "week":
        year, week, _ = day.isocalendar()
        return (date.fromisocalendar(year, week, 1) - date(1969, 12, 29)).days // 7
    if period == "total":
        return 0
    return day.year * 100 + day.month


def rate_level(project: ProjectState, now_us: int) -> int:
    """Returns the units in the token bucket, which gains `requests_per_minute` units each microsecond."""
    gained = max(0, now_us - project.rate_at_us) * project.requests_per_minute
    return min(project.requests_per_minute * RATE_UNITS_PER_REQUEST, project.rate_units + gained)
