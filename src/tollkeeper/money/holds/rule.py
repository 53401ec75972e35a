"""Decides whether calls are admitted: key, project, model, credit, caps, rate and concurrency.

An `AccountBatch` gets the state of one organization's account, which a transaction has locked, and decides on
requests one after the other. A rejected request takes no credit and counts toward no limit. `decide` does
this as a pure function.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from tollkeeper.core.access import KeyId, KeyStatus, ProjectId
from tollkeeper.core.allowed_models import allows
from tollkeeper.core.errors import RETRY_AFTER_S_MAX
from tollkeeper.money.caps.rule import CapCounter, CapKey, CapPeriod, caps_of, period_end
from tollkeeper.money.holds.spend import Fold, FoldKind, Spend
from tollkeeper.policies.policy_set import PolicySet

# One request takes 60 million units, so a limit of one request per minute adds exactly one unit per
# microsecond, and all counts are integers.
RATE_UNITS_PER_REQUEST = 60_000_000
_US_PER_S = 1_000_000
_US_PER_MINUTE = 60 * _US_PER_S
_hold_amount = attrgetter("hold_picousd")


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """For projects and organizations without limits of their own. An overage bound of None means none."""

    requests_per_minute: int
    concurrency: int
    overage_bound_picousd: int | None = None


class ProjectState(msgspec.Struct, frozen=True, gc=False):
    spend: Spend
    archived: bool
    # Neither resolved nor unsettled.
    live_holds: int
    concurrency: int
    requests_per_minute: int
    # At the time `rate_at_us`.
    rate_units: int
    rate_at_us: int
    # Empty: every model.
    models: tuple[str, ...] = ()


class AccountState(msgspec.Struct, frozen=True):
    """One account with those of its projects and keys that a transaction has read."""

    available_picousd: int
    # Only overage, refunds and disputes can make `available_picousd` negative.
    overage_picousd: int
    spend: Spend
    projects: dict[ProjectId, ProjectState]
    keys: dict[KeyId, KeyStatus]
    # Overage may bring the balance down to minus this amount.
    overage_bound_picousd: int | None = None
    # The highest that all calls in flight can cause together.
    overage_in_flight_picousd: int = 0
    # The balance was below minus the overage bound at an earlier admission. Only an operator can clear this.
    stopped: bool = False
    # The organization, or one of its projects or keys, has a cap.
    is_capped: bool = False
    # Those of the organization and of the loaded projects and keys.
    caps: dict[CapKey, CapCounter] = {}
    # A rotated key shares the caps of the first key in its chain.
    first_keys: dict[KeyId, KeyId] = {}
    key_models: dict[KeyId, tuple[str, ...]] = {}

    @property
    def balance_picousd(self) -> int:
        """What was granted and isn't spent, including held and unsettled amounts."""
        spend = self.spend
        return self.available_picousd + spend.held_picousd + spend.unsettled_picousd

    @property
    def is_below_bound(self) -> bool:
        bound = self.overage_bound_picousd
        return bound is not None and self.balance_picousd < -bound

    def folded(self, fold: Fold) -> "AccountState":
        """A fold sums up holds of one project that were resolved or became unsettled."""
        project = self.projects[fold.project_id]
        # A hold stops being open when it becomes unsettled, so its resolution mustn't reduce `live_holds`
        # again.
        ended_holds = 0 if fold.was_unsettled else fold.count
        refund = 0
        if fold.kind is FoldKind.RESOLVED:
            refund = fold.hold_picousd - fold.settled_picousd - fold.overage_picousd
        folded_project = replace(
            project,
            spend=project.spend.folded(fold),
            live_holds=project.live_holds - ended_holds,
        )
        # It left `overage_in_flight_picousd` when it became unsettled.
        ended_overage = 0 if fold.was_unsettled else fold.overage_max_picousd
        return replace(
            self,
            overage_in_flight_picousd=self.overage_in_flight_picousd - ended_overage,
            available_picousd=self.available_picousd + refund,
            overage_picousd=self.overage_picousd + fold.overage_picousd,
            spend=self.spend.folded(fold),
            projects={**self.projects, fold.project_id: folded_project},
        )


class AdmissionRequest(msgspec.Struct, frozen=True, gc=False):
    project_id: ProjectId
    key_id: KeyId
    hold_picousd: int
    overage_max_picousd: int = 0
    model: str = ""


R = TypeVar("R", bound=AdmissionRequest)


class Refusal(StrEnum):
    KEY_NOT_ACTIVE = "key_not_active"
    PROJECT_ARCHIVED = "project_archived"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    OVERAGE = "overage"
    CREDIT = "credit"
    OVERAGE_IN_FLIGHT = "overage_in_flight"
    ORGANIZATION_CAP = "organization_cap"
    PROJECT_CAP = "project_cap"
    KEY_CAP = "key_cap"
    RATE = "rate"
    CONCURRENCY = "concurrency"


class Decision(msgspec.Struct, frozen=True):
    """Without a `refusal` the request is admitted. Otherwise the fields show what the refusing check has
    read."""

    refusal: Refusal | None = None
    key_status: KeyStatus | None = None
    needed_picousd: int = 0
    available_picousd: int = 0
    held_picousd: int = 0
    spent_picousd: int = 0
    # In picousd, requests per minute or concurrent calls.
    limit: int = 0
    # If a cap refused: its period, and when the next one starts (Unix seconds).
    period: CapPeriod | None = None
    resets_at: int | None = None
    # None if a retry cannot succeed soon.
    retry_after_s: int | None = None
    # If the rate refused: until the project may send again.
    wait_us: int = 0
    policies: PolicySet | None = None


ADMITTED = Decision()
# The organization, the project or the key doesn't exist.
REFUSED_AS_UNKNOWN = Decision(Refusal.KEY_NOT_ACTIVE)


class _BatchProject:
    def __init__(self, state: ProjectState, batch: "AccountBatch[Any]", now_us: int) -> None:
        account = batch.state
        self.state = state
        self._rate_units, self._rate_at_us = _refill_rate(state, now_us)
        # An archived project, a list of allowed models or a stopped organization may refuse some calls.
        self.is_restricted = (
            batch.stopped or state.archived or bool(state.models or account.key_models)
        )
        self.has_caps = bool(batch.caps)
        # What rate and concurrency allow.
        self.calls_max = min(
            self._rate_units // RATE_UNITS_PER_REQUEST, state.concurrency - state.live_holds
        )
        self.calls = 0
        self.held = 0

    @property
    def after(self) -> ProjectState:
        return replace(
            self.state,
            spend=self.state.spend.with_hold(self.held),
            live_holds=self.state.live_holds + self.calls,
            rate_units=self._rate_units - self.calls * RATE_UNITS_PER_REQUEST,
            rate_at_us=self._rate_at_us,
        )


class AccountBatch(Generic[R]):
    def __init__(self, state: AccountState, *, now_us: int) -> None:
        self.state = state
        self.stopped = state.stopped or state.is_below_bound
        self.caps = {**state.caps}
        self._available = state.available_picousd
        self._overage_bound = state.overage_bound_picousd
        self._overage_in_flight = state.overage_in_flight_picousd
        # Integers hash faster than UUIDs.
        self._projects = {
            project_id.int: _BatchProject(project, self, now_us)
            for project_id, project in state.projects.items()
        }
        self._active_keys = {
            key_id.int for key_id, status in state.keys.items() if status is KeyStatus.ACTIVE
        }
        self.admitted: list[R] = []

    def decide(self, request: R) -> Decision:
        amount, overage = request.hold_picousd, request.overage_max_picousd
        assert amount >= 0
        project = self._projects.get(request.project_id.int)
        if project is None:
            # Without an existing project even an active key is unknown.
            return REFUSED_AS_UNKNOWN
        if request.key_id.int not in self._active_keys:
            status = self.state.keys.get(request.key_id)
            return Decision(Refusal.KEY_NOT_ACTIVE, key_status=status)
        if project.is_restricted:
            refused = self._refuse_by_restrictions(project.state, request)
            if refused is not None:
                return refused
        # Credit and caps come before rate and concurrency, because those recover by themselves and an
        # operator may have to raise these.
        available, bound = self._available, self._overage_bound
        if amount > available:
            return self._refuse_by_money(Refusal.CREDIT, amount, available, amount - available)
        # Otherwise the balance could fall below minus the bound once all calls in flight have ended.
        in_flight = self._overage_in_flight + overage
        if bound is not None and in_flight > available - amount + bound:
            return self._refuse_by_money(
                Refusal.OVERAGE_IN_FLIGHT,
                needed=amount + overage,
                available=available - self._overage_in_flight,
                missing=overage - (available - amount + bound),
                limit=bound,
            )
        if project.has_caps:
            refused = self._refuse_by_caps(project, request)
            if refused is not None:
                return refused
        if project.calls >= project.calls_max:
            after = project.after
            return _refuse_by_rate(after) or _refuse_by_concurrency(after)
        self._available = available - amount
        self._overage_in_flight = in_flight
        project.calls += 1
        project.held += amount
        if self.caps:
            for cap_key in self._caps_of(request):
                self.caps[cap_key] = self.caps[cap_key].with_hold(amount)
        self.admitted.append(request)
        return ADMITTED

    def after(self) -> AccountState:
        """Asserts that the batch neither makes nor loses money, in production too: a defect here would cost
        an organization money."""
        before, bound = self.state, self._overage_bound
        after = replace(
            before,
            available_picousd=self._available,
            overage_in_flight_picousd=self._overage_in_flight,
            spend=self._spend_after(),
            projects={
                project_id: self._projects[project_id.int].after for project_id in before.projects
            },
            stopped=self.stopped,
            caps=self.caps,
        )
        admitted = sum(map(_hold_amount, self.admitted))
        assert sum(project.held for project in self._projects.values()) == admitted
        assert before.available_picousd - after.available_picousd == admitted
        assert after.spend.held_picousd - before.spend.held_picousd == admitted
        assert after.available_picousd >= 0 or admitted == 0
        if bound is not None and self.admitted:
            assert after.overage_in_flight_picousd <= after.available_picousd + bound
        return after

    def _refuse_by_restrictions(self, project: ProjectState, request: R) -> Decision | None:
        state = self.state
        if project.archived:
            return Decision(Refusal.PROJECT_ARCHIVED)
        key_models = state.key_models.get(request.key_id, ())
        if not allows(project.models, request.model) or not allows(key_models, request.model):
            return Decision(Refusal.MODEL_NOT_ALLOWED)
        if self.stopped:
            limit = state.overage_bound_picousd or 0
            return Decision(Refusal.OVERAGE, available_picousd=state.balance_picousd, limit=limit)
        return None

    def _spend_after(self) -> Spend:
        return self.state.spend.with_hold(self.state.available_picousd - self._available)

    def _refuse_by_money(
        self, refusal: Refusal, needed: int, available: int, missing: int, limit: int = 0
    ) -> Decision:
        spend = self._spend_after()
        return Decision(
            refusal,
            needed_picousd=needed,
            available_picousd=available,
            held_picousd=spend.held_picousd + spend.unsettled_picousd,
            spent_picousd=spend.settled_picousd,
            limit=limit,
            # A retry helps if the request fits once all calls in flight have ended for free. Unsettled holds
            # don't end by themselves.
            retry_after_s=1 if missing <= spend.held_picousd else None,
        )

    def _refuse_by_caps(self, project: _BatchProject, request: R) -> Decision | None:
        for cap_key in self._caps_of(request):
            cap = self.caps[cap_key]
            if request.hold_picousd > cap.left_picousd:
                return self._refuse_by_cap(cap_key, cap, project, request)
        return None

    def _refuse_by_cap(
        self, cap_key: CapKey, cap: CapCounter, project: _BatchProject, request: R
    ) -> Decision:
        subject, period = cap_key
        refusal, spend = Refusal.KEY_CAP, project.after.spend
        if subject is None:
            refusal, spend = Refusal.ORGANIZATION_CAP, self._spend_after()
        elif subject == request.project_id:
            refusal = Refusal.PROJECT_CAP
        # `cap.held_picousd` includes unsettled holds, which wait for reconciliation.
        in_flight = min(cap.held_picousd, spend.held_picousd)
        return Decision(
            refusal,
            needed_picousd=request.hold_picousd,
            available_picousd=cap.left_picousd,
            held_picousd=cap.held_picousd,
            spent_picousd=cap.settled_picousd,
            limit=cap.amount_picousd,
            retry_after_s=1 if request.hold_picousd <= cap.left_picousd + in_flight else None,
            period=period,
            resets_at=period_end(period, cap.number),
        )

    def _caps_of(self, request: R) -> list[CapKey]:
        first_key_id = self.state.first_keys.get(request.key_id, request.key_id)
        return caps_of(self.caps, request.project_id, first_key_id)


def decide(
    state: AccountState, requests: Sequence[AdmissionRequest], *, now_us: int
) -> tuple[AccountState, list[Decision]]:
    batch: AccountBatch[AdmissionRequest] = AccountBatch(state, now_us=now_us)
    decisions = [batch.decide(request) for request in requests]
    return batch.after(), decisions


def take_request(project: ProjectState, *, now_us: int) -> tuple[ProjectState, Decision]:
    """For requests that cost no money: only the rate counts."""
    rate_units, rate_at_us = _refill_rate(project, now_us)
    refilled = replace(project, rate_units=rate_units, rate_at_us=rate_at_us)
    refusal = _refuse_by_rate(refilled)
    if refusal is not None:
        return refilled, refusal
    remaining = refilled.rate_units - RATE_UNITS_PER_REQUEST
    return replace(refilled, rate_units=remaining), ADMITTED


def _refuse_by_rate(project: ProjectState) -> Decision | None:
    missing = RATE_UNITS_PER_REQUEST - project.rate_units
    if missing <= 0:
        return None
    wait_s = -(-missing // (project.requests_per_minute * _US_PER_S))
    return Decision(
        Refusal.RATE,
        limit=project.requests_per_minute,
        retry_after_s=min(max(wait_s, 1), RETRY_AFTER_S_MAX),
        wait_us=-(-missing // project.requests_per_minute),
    )


def _refuse_by_concurrency(project: ProjectState) -> Decision:
    return Decision(Refusal.CONCURRENCY, limit=project.concurrency, retry_after_s=1)


def _refill_rate(project: ProjectState, now_us: int) -> tuple[int, int]:
    """Returns the bucket's content and its time. A full bucket has the requests of one minute.

    Up to a minute before `rate_at_us`, nothing is added and the time stays, so that no time counts twice.
    Earlier than that the clock was set back, and `rate_at_us` becomes `now_us`.
    """
    full = project.requests_per_minute * RATE_UNITS_PER_REQUEST
    elapsed = now_us - project.rate_at_us
    level = min(full, project.rate_units + max(0, elapsed) * project.requests_per_minute)
    at_us = project.rate_at_us if -_US_PER_MINUTE <= elapsed < 0 else now_us
    return level, at_us
