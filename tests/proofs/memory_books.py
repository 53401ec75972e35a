"""A ledger in memory: its rows, the operations that change them, and the checks of their sums."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TypeAlias
from uuid import UUID

from msgspec.structs import replace

from tests.money.holds.admission_oracle import number_of
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.money.caps.rule import (
    DAY_S,
    CapCounter,
    CapKey,
    CapPeriod,
    CapSubject,
    caps_of,
    period_number,
)
from tollkeeper.money.holds.rule import AccountState, decide
from tollkeeper.money.holds.spend import Fold, FoldKind, Spend
from tollkeeper.money.holds.values import Hold, LockedAccounts, Resolution
from tollkeeper.money.overage.rule import Excess

Counter: TypeAlias = tuple[OrganizationId, CapSubject, CapPeriod, int]


def utc_day(now_us: int) -> int:
    return now_us // (DAY_S * 10**6)


@dataclass(frozen=True, slots=True)
class Row:
    hold: Hold
    process_id: UUID
    # The UTC day of the admission, in days since 1970.
    day: int


@dataclass
class Books:
    granted: dict[OrganizationId, int]
    accounts: dict[OrganizationId, AccountState]
    # The amounts of the caps, and what counts for them: held and settled, by number of the period.
    caps: dict[OrganizationId, dict[CapKey, int]] = field(default_factory=dict)
    counters: dict[Counter, tuple[int, int]] = field(default_factory=dict)
    reservations: dict[UUID, Row] = field(default_factory=dict)
    marks: set[UUID] = field(default_factory=set)
    resolutions: dict[UUID, Resolution] = field(default_factory=dict)
    unfolded: set[tuple[UUID, FoldKind]] = field(default_factory=set)
    # Organizations that a transaction has found below their overage bound. They stay stopped.
    debtors: set[OrganizationId] = field(default_factory=set)
    # Calls that cost more than their holds.
    excesses: list[Excess] = field(default_factory=list)

    def copy(self) -> "Books":
        return Books(
            self.granted.copy(),
            self.accounts.copy(),
            self.caps,
            self.counters.copy(),
            self.reservations.copy(),
            self.marks.copy(),
            self.resolutions.copy(),
            self.unfolded.copy(),
            self.debtors.copy(),
            self.excesses.copy(),
        )

    def lock(
        self, organizations: Iterable[OrganizationId], now_us: int
    ) -> tuple[LockedAccounts, set[tuple[UUID, FoldKind]]]:
        """Returns the accounts with all folds applied, and the entries of `unfolded` that were folded."""
        wanted = set(organizations)
        taken = {
            one for one in self.unfolded if self.reservations[one[0]].hold.organization_id in wanted
        }
        states = {
            organization_id: state
            for organization_id, state in self.accounts.items()
            if organization_id in wanted
        }
        for one in sorted(taken):
            organization_id = self.reservations[one[0]].hold.organization_id
            states[organization_id] = states[organization_id].folded(self._fold(one))
        counters = self._folded(taken)
        for organization_id, state in states.items():
            caps = {}
            for (subject, period), amount in self.caps.get(organization_id, {}).items():
                number = period_number(period, utc_day(now_us))
                sums = counters.get((organization_id, subject, period, number), (0, 0))
                caps[subject, period] = CapCounter(amount, number, *sums)
            states[organization_id] = replace(state, caps=caps)
        return LockedAccounts(states, dict.fromkeys(states, 0), now_us), taken

    def note_debtors(self, organizations: Iterable[OrganizationId]) -> None:
        """Adds organizations below their overage bound to `debtors`. Called by a transaction that has
        locked their accounts."""
        self.debtors |= {one for one in organizations if self._owes_too_much(one)}

    def _owes_too_much(self, organization_id: OrganizationId) -> bool:
        """Returns whether the costs exceed the grants by more than the overage bound."""
        bound = self.accounts[organization_id].overage_bound_picousd
        spent = sum(
            cost_of(resolution)
            for resolution in self.resolutions.values()
            if resolution.organization_id == organization_id
        )
        return bound is not None and spent > self.granted[organization_id] + bound

    def grant(self, organization_id: OrganizationId, amount: int) -> None:
        """Adds credit, as the operator's command does. First applies all pending folds of the account."""
        self.note_debtors([organization_id])
        locked, taken = self.lock([organization_id], 0)
        state, _ = decide(locked.states[organization_id], (), now_us=0)
        self.counters = self._folded(taken)
        self.unfolded -= taken
        self.granted[organization_id] += amount
        available = state.available_picousd + amount
        self.accounts[organization_id] = replace(state, available_picousd=available)

    def _fold(self, one: tuple[UUID, FoldKind]) -> Fold:
        reservation_id, kind = one
        row = self.reservations[reservation_id]
        amount = row.hold.hold_picousd
        cost = 0
        if kind is FoldKind.RESOLVED:
            cost = cost_of(self.resolutions[reservation_id])
        return Fold(
            project_id=row.hold.project_id,
            kind=kind,
            was_unsettled=kind is FoldKind.RESOLVED and reservation_id in self.marks,
            count=1,
            hold_picousd=amount,
            settled_picousd=min(amount, cost),
            overage_picousd=max(0, cost - amount),
            overage_max_picousd=row.hold.overage_max_picousd,
        )

    def _folded(self, taken: set[tuple[UUID, FoldKind]]) -> dict[Counter, tuple[int, int]]:
        """Returns the counters of the caps after these resolutions are counted."""
        counters = self.counters.copy()
        for reservation_id, kind in taken:
            row = self.reservations[reservation_id]
            organization_id = row.hold.organization_id
            if kind is not FoldKind.RESOLVED:
                continue
            first_key = self._first_key(self.accounts[organization_id], row)
            caps = self.caps.get(organization_id, {})
            for subject, period in caps_of(caps, row.hold.project_id, first_key):
                counter = (organization_id, subject, period, period_number(period, row.day))
                held, settled = counters.get(counter, (0, 0))
                cost = cost_of(self.resolutions[reservation_id])
                counters[counter] = (held - row.hold.hold_picousd, settled + cost)
        return counters

    def write_holds(
        self,
        locked: LockedAccounts,
        taken: set[tuple[UUID, FoldKind]],
        admitted: Sequence[Hold],
        process_id: UUID,
    ) -> None:
        for organization_id, state in locked.states.items():
            self.accounts[organization_id] = state
        self.counters = self._folded(taken)
        for organization_id, state in locked.states.items():
            for (subject, period), cap in state.caps.items():
                counter = (organization_id, subject, period, cap.number)
                held, settled = self.counters.get(counter, (0, 0))
                self.counters[counter] = (held + cap.added_picousd, settled)
        self.unfolded -= taken
        for hold in admitted:
            assert hold.id not in self.reservations, "the primary key"
            self.reservations[hold.id] = Row(hold, process_id, utc_day(locked.now_us))
            self._check_limits(hold)

    def resolve(self, resolution: Resolution) -> None:
        assert resolution.reservation_id in self.reservations, "the foreign key"
        assert resolution.reservation_id not in self.resolutions, "the primary key"
        assert cost_of(resolution) >= 0
        self.resolutions[resolution.reservation_id] = resolution
        self.unfolded.add((resolution.reservation_id, FoldKind.RESOLVED))

    def mark(self, reservation_id: UUID) -> bool:
        if reservation_id not in self.reservations:
            return False
        if reservation_id in self.resolutions or reservation_id in self.marks:
            return False
        self.marks.add(reservation_id)
        self.unfolded.add((reservation_id, FoldKind.UNSETTLED))
        return True

    def restore(self, row: Row) -> bool:
        if row.hold.id in self.reservations:
            return False
        state = self.accounts[row.hold.organization_id]
        project = state.projects[row.hold.project_id]
        counted = replace(project, live_holds=project.live_holds + 1)
        self.accounts[row.hold.organization_id] = replace(
            state, projects={**state.projects, row.hold.project_id: counted}
        )
        self.reservations[row.hold.id] = row
        return True

    # The methods below are checks.

    def _check_limits(self, hold: Hold) -> None:
        """Checks that no limit is exceeded when an admission is committed."""
        state = self.accounts[hold.organization_id]
        project = state.projects[hold.project_id]
        assert state.available_picousd >= 0
        assert hold.organization_id not in self.debtors, "an organization in debt is stopped"
        assert project.live_holds <= project.concurrency
        first_key = state.first_keys.get(hold.key_id, hold.key_id)
        for subject, period in caps_of(state.caps, hold.project_id, first_key):
            assert state.caps[subject, period].left_picousd >= 0, (subject, period)

    def check(self) -> None:
        """Checks the constraints of the tables, and every balance against the immutable rows."""
        for organization_id, state in self.accounts.items():
            _check_constraints(self.granted[organization_id], state)
        folded, taken = self.lock(self.accounts, 0)
        counters = self._folded(taken)
        for organization_id, state in folded.states.items():
            rows = [
                row
                for row in self.reservations.values()
                if row.hold.organization_id == organization_id
            ]
            _check_equal(state.spend, self._recomputed(rows))
            for project_id, project in state.projects.items():
                mine = [row for row in rows if row.hold.project_id == project_id]
                _check_equal(project.spend, self._recomputed(mine))
                live = sum(self._is_live(row) for row in mine)
                assert project.live_holds == live, (project.live_holds, live)
            self._check_caps(organization_id, state, rows, counters)
            self._check_overage(organization_id, state, rows)

    def _check_overage(
        self, organization_id: OrganizationId, state: AccountState, rows: Sequence[Row]
    ) -> None:
        """Checks that the overage in flight is the sum over all calls in flight, and that the balance is
        not below the overage bound. A call that was marked unsettled, or whose hold a crash has lost, was
        not in flight at its end, so its overage is not counted. Nor is the part of an overage that
        nobody expected at the admission of the call."""
        in_flight = sum(row.hold.overage_max_picousd for row in rows if self._is_live(row))
        assert state.overage_in_flight_picousd == in_flight
        bound = state.overage_bound_picousd
        if bound is None:
            return
        balance = self.granted[organization_id]
        for row in rows:
            resolution = self.resolutions.get(row.hold.id)
            if resolution is not None:
                is_late = row.hold.id in self.marks or row.hold.hold_picousd == 0
                expected = 0 if is_late else row.hold.overage_max_picousd
                balance -= min(cost_of(resolution), row.hold.hold_picousd + expected)
        assert balance >= -bound, (balance, bound)

    def _check_caps(
        self,
        organization_id: OrganizationId,
        state: AccountState,
        rows: Sequence[Row],
        counters: dict[Counter, tuple[int, int]],
    ) -> None:
        """Checks that each counter counts all holds of its period and subject, and no others."""
        wanted: dict[Counter, list[int]] = {}
        for row in rows:
            resolution = self.resolutions.get(row.hold.id)
            subjects = (None, row.hold.project_id, self._first_key(state, row))
            for subject, period in self.caps.get(organization_id, {}):
                if subject in subjects:
                    number = number_of(period, date(1970, 1, 1) + timedelta(days=row.day))
                    sums = wanted.setdefault((organization_id, subject, period, number), [0, 0])
                    sums[0] += row.hold.hold_picousd if resolution is None else 0
                    sums[1] += 0 if resolution is None else cost_of(resolution)
        kept = {of: sums for of, sums in counters.items() if of[0] == organization_id}
        for counter in kept.keys() | wanted.keys():
            expected = tuple(wanted.get(counter, (0, 0)))
            assert kept.get(counter, (0, 0)) == expected, (counter, expected)

    def _first_key(self, state: AccountState, row: Row) -> KeyId:
        return state.first_keys.get(row.hold.key_id, row.hold.key_id)

    def _is_live(self, row: Row) -> bool:
        return row.hold.id not in self.resolutions and row.hold.id not in self.marks

    def _recomputed(self, rows: Sequence[Row]) -> Spend:
        held = unsettled = settled = 0
        for row in rows:
            amount = row.hold.hold_picousd
            resolution = self.resolutions.get(row.hold.id)
            if resolution is not None:
                settled += cost_of(resolution)
            elif row.hold.id in self.marks:
                unsettled += amount
            else:
                held += amount
        return Spend(held, unsettled, settled)


def cost_of(resolution: Resolution) -> int:
    return (
        resolution.prompt
        + resolution.completion
        + resolution.input_cache_read
        + resolution.input_cache_write
        + resolution.input_audio
        + resolution.output_audio
        + resolution.output_image
        + resolution.web_search
        + resolution.image
        + resolution.request
        + resolution.other
    )


def _check_constraints(granted: int, state: AccountState) -> None:
    spend = state.spend
    total = (
        state.available_picousd
        + spend.held_picousd
        + spend.unsettled_picousd
        + spend.settled_picousd
    )
    assert granted == total, (granted, state)
    assert state.available_picousd >= -state.overage_picousd
    projects: list[tuple[ProjectId, Spend]] = [
        (project_id, project.spend) for project_id, project in state.projects.items()
    ]
    for subject, one in (("account", spend), *projects):
        amounts = (
            one.held_picousd,
            one.unsettled_picousd,
            one.settled_picousd,
        )
        assert min(amounts) >= 0, (subject, one)
        assert all(type(amount) is int for amount in amounts), (subject, one)


def _check_equal(kept: Spend, recomputed: Spend) -> None:
    assert kept == recomputed, f"kept {kept}, recomputed {recomputed}"
