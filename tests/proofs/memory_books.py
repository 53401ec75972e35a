"""A ledger in memory: its rows, the operations that change them, and the checks of their sums."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from uuid import UUID

from msgspec.structs import replace

from tests.domain.admission_oracle import number_of
from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import AccountState, decide
from tollkeeper.domain.caps import ResolvedHold, day_at
from tollkeeper.domain.ledger import Hold, LockedAccounts, Resolution
from tollkeeper.domain.spend import Fold, FoldKind, Spend


@dataclass(frozen=True, slots=True)
class Row:
    hold: Hold
    process_id: UUID
    month: int
    # The UTC day to whose caps the hold counts, in days since 1970.
    day: int = 0


@dataclass
class Books:
    granted: dict[OrganizationId, int]
    accounts: dict[OrganizationId, AccountState]
    reservations: dict[UUID, Row] = field(default_factory=dict)
    marks: set[UUID] = field(default_factory=set)
    resolutions: dict[UUID, Resolution] = field(default_factory=dict)
    unfolded: set[tuple[UUID, FoldKind]] = field(default_factory=set)
    # Organizations that a transaction has found below their overage bound. They stay stopped.
    debtors: set[OrganizationId] = field(default_factory=set)

    def copy(self) -> "Books":
        return Books(
            self.granted.copy(),
            self.accounts.copy(),
            self.reservations.copy(),
            self.marks.copy(),
            self.resolutions.copy(),
            self.unfolded.copy(),
            self.debtors.copy(),
        )

    def lock(
        self, organizations: Iterable[OrganizationId], now_us: int, month: int
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
            state = states[organization_id].folded(self._fold(one))
            if state.spending_day is not None and one[1] is FoldKind.RESOLVED:
                state = state.with_resolved(self._ended(one[0], state))
            states[organization_id] = state
        return LockedAccounts(states, dict.fromkeys(states, 0), now_us, month), taken

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
        locked, taken = self.lock([organization_id], 0, 0)
        state, _ = decide(locked.states[organization_id], (), now_us=0, month=0)
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
            month=row.month,
            count=1,
            hold_picousd=amount,
            settled_picousd=min(amount, cost),
            overage_picousd=max(0, cost - amount),
            overage_max_picousd=row.hold.overage_max_picousd,
        )

    def _ended(self, reservation_id: UUID, state: AccountState) -> ResolvedHold:
        row = self.reservations[reservation_id]
        return ResolvedHold(
            project_id=row.hold.project_id,
            first_key_id=state.first_keys.get(row.hold.key_id, row.hold.key_id),
            spending_day=row.day,
            hold_picousd=row.hold.hold_picousd,
            spent_picousd=cost_of(self.resolutions[reservation_id]),
        )

    def write_holds(
        self,
        locked: LockedAccounts,
        taken: set[tuple[UUID, FoldKind]],
        admitted: Sequence[Hold],
        process_id: UUID,
    ) -> None:
        for organization_id, state in locked.states.items():
            self.accounts[organization_id] = state
        self.unfolded -= taken
        for hold in admitted:
            assert hold.id not in self.reservations, "the primary key"
            state = locked.states[hold.organization_id]
            day = day_at(locked.now_us) if state.spending_day is None else state.spending_day
            self.reservations[hold.id] = Row(hold, process_id, state.spend.month, day)
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
        self.reservations[row.hold.id] = Row(
            row.hold,
            row.process_id,
            max(row.month, state.spend.month),
            max(row.day, state.spending_day or 0),
        )
        return True

    # The methods below are checks.

    def _check_limits(self, hold: Hold) -> None:
        """Checks that no limit is exceeded when an admission is committed."""
        state = self.accounts[hold.organization_id]
        project = state.projects[hold.project_id]
        assert state.available_picousd >= 0
        assert hold.organization_id not in self.debtors, "an organization in debt is stopped"
        assert project.live_holds <= project.concurrency
        for cap, spend in ((state.cap, state.spend), (project.cap, project.spend)):
            assert cap is None or spend.under(cap).counted_picousd <= cap.amount_picousd
        first_key = state.first_keys.get(hold.key_id, hold.key_id)
        for (owner, _), period_cap in state.period_caps.items():
            if owner in (None, hold.project_id, first_key):
                assert period_cap.counted_picousd <= period_cap.amount_picousd

    def check(self) -> None:
        """Checks the constraints of the tables, and every balance against the immutable rows."""
        for organization_id, state in self.accounts.items():
            _check_constraints(self.granted[organization_id], state)
        folded, _ = self.lock(self.accounts, 0, 0)
        for organization_id, state in folded.states.items():
            rows = [
                row
                for row in self.reservations.values()
                if row.hold.organization_id == organization_id
            ]
            _check_equal(state.spend, self._recomputed(rows, state.spend.month))
            for project_id, project in state.projects.items():
                mine = [row for row in rows if row.hold.project_id == project_id]
                _check_equal(project.spend, self._recomputed(mine, project.spend.month))
                live = sum(self._is_live(row) for row in mine)
                assert project.live_holds == live, (project.live_holds, live)
            self._check_period_caps(state, rows)
            self._check_overage(organization_id, state, rows)

    def _check_overage(
        self, organization_id: OrganizationId, state: AccountState, rows: Sequence[Row]
    ) -> None:
        """Checks that the overage in flight is the sum over all calls in flight, and that the balance is
        not below the overage bound. A call that was marked unsettled, or whose hold a crash has lost, was
        not in flight at its end, so its overage is not counted."""
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
                cost = cost_of(resolution)
                balance -= min(cost, row.hold.hold_picousd) if is_late else cost
        assert balance >= -bound, (balance, bound)

    def _check_period_caps(self, state: AccountState, rows: Sequence[Row]) -> None:
        """Checks that each cap counts all holds of its own period and owner, and no others."""
        for (owner, period), cap in state.period_caps.items():
            assert state.spending_day is not None
            mine = [
                row
                for row in rows
                if owner in (None, row.hold.project_id, self._first_key(state, row))
                and number_of(period, date(1970, 1, 1) + timedelta(days=row.day)) == cap.number
            ]
            resolved = [self.resolutions.get(row.hold.id) for row in mine]
            settled = sum(cost_of(found) for found in resolved if found is not None)
            held = sum(
                row.hold.hold_picousd
                for row, found in zip(mine, resolved, strict=True)
                if found is None
            )
            kept = (cap.held_picousd, cap.settled_picousd)
            assert kept == (held, settled), (owner, period, cap, held, settled)

    def _first_key(self, state: AccountState, row: Row) -> KeyId:
        return state.first_keys.get(row.hold.key_id, row.hold.key_id)

    def _is_live(self, row: Row) -> bool:
        return row.hold.id not in self.resolutions and row.hold.id not in self.marks

    def _recomputed(self, rows: Sequence[Row], month: int) -> Spend:
        held = unsettled = settled = month_held = month_settled = 0
        for row in rows:
            amount = row.hold.hold_picousd
            resolution = self.resolutions.get(row.hold.id)
            if resolution is not None:
                settled += cost_of(resolution)
                month_settled += cost_of(resolution) if row.month == month else 0
                continue
            month_held += amount if row.month == month else 0
            if row.hold.id in self.marks:
                unsettled += amount
            else:
                held += amount
        return Spend(held, unsettled, settled, month, month_held, month_settled)


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
        + resolution.verdict
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
            one.month_held_picousd,
            one.month_settled_picousd,
        )
        assert min(amounts) >= 0, (subject, one)
        assert all(type(amount) is int for amount in amounts), (subject, one)


def _check_equal(kept: Spend, recomputed: Spend) -> None:
    assert kept == recomputed, f"kept {kept}, recomputed {recomputed}"
