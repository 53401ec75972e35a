"""The decision whether calls may be made: credit, caps, rate, concurrency and credentials at once.

`decide` is pure. It is given the state of one organization's account as a transaction has locked it
and the requests of one batch in their order; it returns the state afterwards and one decision a
request. A refused request leaves no trace in the state: nothing is consumed by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from tollkeeper.domain.access import KeyId, KeyStatus, ProjectId
from tollkeeper.domain.errors import RETRY_AFTER_S_MAX
from tollkeeper.domain.policy_set import PolicySet

# The level of a rate bucket counts in requests times this, so that a microsecond's refill of one
# request a minute is one unit and no fraction is ever lost.
RATE_UNITS_PER_REQUEST = 60_000_000
_US_PER_S = 1_000_000
_US_PER_MINUTE = 60 * _US_PER_S


class CapPeriod(StrEnum):
    MONTH = "month"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """What holds for a project that has no limits of its own."""

    requests_per_minute: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Cap:
    amount_picousd: int
    period: CapPeriod


class Spend(msgspec.Struct, frozen=True, gc=False):
    """Money of an organization or of a project, in all and in one UTC month.

    Unsettled holds count like live ones, also in `month_held`: neither can be spent again before
    it is resolved. `settled` counts overage.
    """

    held_picousd: int = 0
    unsettled_picousd: int = 0
    settled_picousd: int = 0
    month: int = 0
    month_held_picousd: int = 0
    month_settled_picousd: int = 0

    def in_month(self, month: int) -> "Spend":
        """The same money, seen from a later month: what belonged to the old one no longer counts.
        There is no way back: what was counted in the later month would be forgotten on it."""
        if month <= self.month:
            return self
        return replace(self, month=month, month_held_picousd=0, month_settled_picousd=0)

    def with_hold(self, amount: int) -> "Spend":
        return replace(
            self,
            held_picousd=self.held_picousd + amount,
            month_held_picousd=self.month_held_picousd + amount,
        )

    def counted(self, period: CapPeriod) -> int:
        if period is CapPeriod.MONTH:
            return self.month_held_picousd + self.month_settled_picousd
        return self.held_picousd + self.unsettled_picousd + self.settled_picousd

    def folded(self, fold: "Fold") -> "Spend":
        """The same money after holds of one month became unsettled or were resolved."""
        if fold.kind is FoldKind.UNSETTLED:
            return replace(
                self,
                held_picousd=self.held_picousd - fold.hold_picousd,
                unsettled_picousd=self.unsettled_picousd + fold.hold_picousd,
            )
        spent = fold.settled_picousd + fold.overage_picousd
        from_held = 0 if fold.was_unsettled else fold.hold_picousd
        # A hold that was put back after a crash may be the first of its month here.
        now = self.in_month(fold.month)
        this_month = fold.month == now.month
        return replace(
            now,
            held_picousd=now.held_picousd - from_held,
            unsettled_picousd=now.unsettled_picousd - (fold.hold_picousd - from_held),
            settled_picousd=now.settled_picousd + spent,
            month_held_picousd=now.month_held_picousd - (fold.hold_picousd if this_month else 0),
            month_settled_picousd=now.month_settled_picousd + (spent if this_month else 0),
        )


class FoldKind(StrEnum):
    UNSETTLED = "unsettled"
    RESOLVED = "resolved"


class Fold(msgspec.Struct, frozen=True, gc=False):
    """What a number of reservations of one project, held in one month, give back to the account."""

    project_id: ProjectId
    kind: FoldKind
    was_unsettled: bool
    month: int
    count: int
    hold_picousd: int
    settled_picousd: int
    overage_picousd: int


class ProjectState(msgspec.Struct, frozen=True, gc=False):
    spend: Spend
    cap: Cap | None
    archived: bool
    live_holds: int
    concurrency: int
    requests_per_minute: int
    rate_units: int
    rate_at_us: int


class AccountState(msgspec.Struct, frozen=True):
    """One organization as the transaction sees it."""

    available_picousd: int
    # All that was ever used beyond its hold: the only way below zero.
    overage_picousd: int
    spend: Spend
    cap: Cap | None
    projects: dict[ProjectId, ProjectState]
    keys: dict[KeyId, KeyStatus]

    def folded(self, fold: Fold) -> "AccountState":
        project = self.projects[fold.project_id]
        ended = 0 if fold.was_unsettled else fold.count
        given_back = 0
        if fold.kind is FoldKind.RESOLVED:
            given_back = fold.hold_picousd - fold.settled_picousd - fold.overage_picousd
        after = replace(
            project,
            spend=project.spend.folded(fold),
            live_holds=project.live_holds - ended,
        )
        return replace(
            self,
            available_picousd=self.available_picousd + given_back,
            overage_picousd=self.overage_picousd + fold.overage_picousd,
            spend=self.spend.folded(fold),
            projects={**self.projects, fold.project_id: after},
        )


class AdmissionRequest(msgspec.Struct, frozen=True, gc=False):
    project_id: ProjectId
    key_id: KeyId
    hold_picousd: int


class Refusal(StrEnum):
    KEY_NOT_ACTIVE = "key_not_active"
    PROJECT_ARCHIVED = "project_archived"
    CREDIT = "credit"
    ORGANIZATION_CAP = "organization_cap"
    PROJECT_CAP = "project_cap"
    RATE = "rate"
    CONCURRENCY = "concurrency"


class Decision(msgspec.Struct, frozen=True):
    """Admitted where `refusal` is None. The numbers are those that the decision was made on."""

    refusal: Refusal | None = None
    key_status: KeyStatus | None = None
    needed_picousd: int = 0
    available_picousd: int = 0
    held_picousd: int = 0
    spent_picousd: int = 0
    limit: int = 0
    retry_after_s: int | None = None
    # The policies in force at this very admission; None where the organization has none.
    policies: PolicySet | None = None


ADMITTED = Decision()
# There is no such organization, project or key.
UNKNOWN = Decision(Refusal.KEY_NOT_ACTIVE)


@dataclass(slots=True)
class _Working:
    """The state while a batch is decided."""

    available: int
    spend: Spend
    projects: dict[ProjectId, ProjectState] = field(default_factory=dict)


def decide(
    state: AccountState, requests: Sequence[AdmissionRequest], *, now_us: int, month: int
) -> tuple[AccountState, list[Decision]]:
    """The month that counts is that of the state afterwards: an account that has seen a later one
    stays in it."""
    spend = state.spend.in_month(month)
    working = _Working(
        available=state.available_picousd,
        spend=spend,
        projects={
            project_id: _refilled(
                replace(project, spend=project.spend.in_month(spend.month)), now_us
            )
            for project_id, project in state.projects.items()
        },
    )
    decisions = []
    for request in requests:
        assert request.hold_picousd >= 0
        decision = _decide_one(state, working, request)
        if decision.refusal is None:
            _consume(working, request)
        decisions.append(decision)
    after = replace(
        state,
        available_picousd=working.available,
        spend=working.spend,
        projects=working.projects,
    )
    _check_conservation(state, after, requests, decisions)
    return after, decisions


def take_request(project: ProjectState, *, now_us: int) -> tuple[ProjectState, Decision]:
    """For what is counted and costs nothing: one request of the project's rate, and nothing else."""
    refilled = _refilled(project, now_us)
    refusal = _rate(refilled)
    if refusal is not None:
        return refilled, refusal
    left = refilled.rate_units - RATE_UNITS_PER_REQUEST
    return replace(refilled, rate_units=left), ADMITTED


def _decide_one(state: AccountState, working: _Working, request: AdmissionRequest) -> Decision:
    project = working.projects.get(request.project_id)
    status = state.keys.get(request.key_id)
    # Without its project a key opens nothing, whatever its own status is.
    if project is None:
        return UNKNOWN
    if status is not KeyStatus.ACTIVE:
        return Decision(Refusal.KEY_NOT_ACTIVE, key_status=status)
    if project.archived:
        return Decision(Refusal.PROJECT_ARCHIVED)
    # Refusals that waiting cannot heal come first.
    return (
        _credit(working, request)
        or _cap(Refusal.ORGANIZATION_CAP, state.cap, working.spend, request)
        or _cap(Refusal.PROJECT_CAP, project.cap, project.spend, request)
        or _rate(project)
        or _concurrency(project)
        or ADMITTED
    )


def _credit(working: _Working, request: AdmissionRequest) -> Decision | None:
    if request.hold_picousd <= working.available and working.available >= 0:
        return None
    held = working.spend.held_picousd + working.spend.unsettled_picousd
    return Decision(
        Refusal.CREDIT,
        needed_picousd=request.hold_picousd,
        available_picousd=working.available,
        held_picousd=held,
        spent_picousd=working.spend.settled_picousd,
        # Only calls that are still running stand in the way: it may fit when they are settled.
        retry_after_s=1
        if request.hold_picousd <= working.available + working.spend.held_picousd
        else None,
    )


def _cap(
    refusal: Refusal, cap: Cap | None, spend: Spend, request: AdmissionRequest
) -> Decision | None:
    if cap is None:
        return None
    counted = spend.counted(cap.period)
    if counted + request.hold_picousd <= cap.amount_picousd:
        return None
    monthly = cap.period is CapPeriod.MONTH
    held = spend.month_held_picousd if monthly else counted - spend.settled_picousd
    # Only a running call frees its hold by itself; an unsettled one waits for somebody.
    running = min(held, spend.held_picousd)
    return Decision(
        refusal,
        needed_picousd=request.hold_picousd,
        available_picousd=cap.amount_picousd - counted,
        held_picousd=held,
        spent_picousd=counted - held,
        limit=cap.amount_picousd,
        retry_after_s=1 if counted - running + request.hold_picousd <= cap.amount_picousd else None,
    )


def _rate(project: ProjectState) -> Decision | None:
    missing = RATE_UNITS_PER_REQUEST - project.rate_units
    if missing <= 0:
        return None
    wait_s = -(-missing // (project.requests_per_minute * _US_PER_S))
    return Decision(
        Refusal.RATE,
        limit=project.requests_per_minute,
        retry_after_s=min(max(wait_s, 1), RETRY_AFTER_S_MAX),
    )


def _concurrency(project: ProjectState) -> Decision | None:
    if project.live_holds < project.concurrency:
        return None
    return Decision(Refusal.CONCURRENCY, limit=project.concurrency, retry_after_s=1)


def _consume(working: _Working, request: AdmissionRequest) -> None:
    project = working.projects[request.project_id]
    working.available -= request.hold_picousd
    working.spend = working.spend.with_hold(request.hold_picousd)
    working.projects[request.project_id] = replace(
        project,
        spend=project.spend.with_hold(request.hold_picousd),
        live_holds=project.live_holds + 1,
        rate_units=project.rate_units - RATE_UNITS_PER_REQUEST,
    )


def _refilled(project: ProjectState, now_us: int) -> ProjectState:
    """The bucket holds one minute's requests. A clock that went back refills nothing, and the time
    that it goes through again is not counted again; where it went back by more than the minute
    that fills a bucket, it was set, and counting starts anew."""
    full = project.requests_per_minute * RATE_UNITS_PER_REQUEST
    elapsed = now_us - project.rate_at_us
    level = min(full, project.rate_units + max(0, elapsed) * project.requests_per_minute)
    at_us = project.rate_at_us if -_US_PER_MINUTE <= elapsed < 0 else now_us
    return replace(project, rate_units=level, rate_at_us=at_us)


def _check_conservation(
    before: AccountState,
    after: AccountState,
    requests: Sequence[AdmissionRequest],
    decisions: Sequence[Decision],
) -> None:
    """A programmer's error here would be somebody's money: these stay on in production."""
    admitted = sum(
        request.hold_picousd
        for request, decision in zip(requests, decisions, strict=True)
        if decision.refusal is None
    )
    assert before.available_picousd - after.available_picousd == admitted
    assert after.spend.held_picousd - before.spend.held_picousd == admitted
    assert after.available_picousd >= 0 or admitted == 0
