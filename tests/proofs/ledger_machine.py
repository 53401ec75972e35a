"""Applies the same operations in any order to the real ledger and to a plain model, and compares them."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from msgspec.structs import replace as with_fields

from tests.proofs.ledger_model import Model, Phase, Reserved
from tests.support.database_clock import DatabaseClock
from tests.support.ledger import (
    LIMITS,
    Balance,
    LedgerTenant,
    another_project,
    balance_of,
    differences,
    hold_of,
    make_process,
    make_tenant,
    release,
    rotate,
    run,
    settlement,
)
from tests.tenants.test_credentials import archive, revoke
from tollkeeper.core.access import KeyId
from tollkeeper.core.reports import CostDimension, CostQuery
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.database.database import Database
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.credit.service import Accounts
from tollkeeper.money.holds.values import Hold, Resolution
from tollkeeper.money.unsettled.recovery import Recovery
from tollkeeper.reports.costs.service import Costs

T = TypeVar("T")

STEPS = 40
OVERAGE_BOUND = 25  # picousd
BOUNDED = replace(LIMITS, overage_bound_picousd=OVERAGE_BOUND)
DAYS_MAX = 28


def _most(one: Reserved) -> int:
    """Returns the highest cost that a rule may charge for the call. An unsettled call is not in flight
    any more, so it may not cost more than its hold."""
    return one.amount + (one.overage_max if one.phase is Phase.HELD else 0)


def _at(day: date) -> datetime:
    return datetime.combine(day, time(12), tzinfo=UTC)


TABLES = """
    accounts, project_accounts, grants, reservations, unsettled_marks, resolutions, overages,
    unfolded, cost_rollup, processes, caps, cap_counters, project_keys, projects, organizations
"""
sides = st.integers(0, 1)
amounts = st.integers(0, 30) | st.just(10**24)
# The highest possible overage of a call. A call with a hold of zero has no overage.
overages = st.sampled_from((0, 0, 7, 20))


class LedgerMachine(RuleBasedStateMachine):
    """Two processes and one organization with two projects. The rules are the operations on its money."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    database: ClassVar[Database]
    clock: ClassVar[DatabaseClock]
    histories: ClassVar[int] = 0
    steps: ClassVar[int] = 0
    crashes: ClassVar[int] = 0

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def resolved(self, side: int, resolution: Resolution, hold: Hold) -> bool:
        async def resolve() -> bool:
            return await self.processes[side].ledger.resolve(resolution, hold)

        return self.wait(resolve())

    def marked(self, side: int, hold: Hold) -> bool:
        async def mark() -> bool:
            return await self.processes[side].ledger.mark_unsettled(hold, "test")

        return self.wait(mark())

    @initialize(credit=st.integers(0, 200))
    def open_books(self, credit: int) -> None:
        type(self).histories += 1
        self.wait(run(self.database, f"TRUNCATE {TABLES} CASCADE"))
        self.processes = [make_process(self.database, BOUNDED) for _ in range(2)]
        first = self.wait(make_tenant(self.database))
        self.tenants = [first, self.wait(another_project(self.database, first))]
        self.model = Model(overage_bound=OVERAGE_BOUND)
        self.clock.set(_at(self.model.today))
        self.days_passed = 0
        self.sweeps = 0
        self.accounts = Accounts(self.database, BOUNDED)
        self.caps = Caps(self.database, BOUNDED)
        if credit:
            self.grant(credit)

    @property
    def organization(self) -> LedgerTenant:
        return self.tenants[0]

    def chosen(self, number: int, *phases: Phase) -> Reserved | None:
        """Returns a reservation in one of the phases. If there is none, returns None, and the rule does
        nothing. This is not a Hypothesis precondition: `resolve_twice` has a real race, and the values
        that Hypothesis draws must not depend on its result."""
        found = self.model.in_phase(*phases)
        return found[number % len(found)] if found else None

    # The rules below change money.

    @rule(amount=st.integers(1, 100))
    def grant(self, amount: int) -> None:
        self.wait(self.accounts.credit_grant(self.organization.organization_id, amount))
        self.model.granted += amount

    @rule(side=sides, which=sides, amount=amounts, overage_max=overages)
    def reserve(self, side: int, which: int, amount: int, overage_max: int) -> None:
        tenant = self.tenants[which]
        overage_max = overage_max if amount else 0
        hold = with_fields(hold_of(tenant, amount), overage_max_picousd=overage_max)
        expected = self.model.refusal(tenant, amount, overage_max)
        decision = self.wait(self.processes[side].ledger.hold(hold))
        assert decision.refusal == expected, (decision, self.model)
        if expected is None:
            self.model.reserve(hold)

    @rule(
        which=sides,
        amounts=st.lists(st.integers(0, 20), min_size=2, max_size=6),
        overage_max=overages,
    )
    def reserve_at_once(self, which: int, amounts: list[int], overage_max: int) -> None:
        """Sends several holds at once to one process, which decides in the order of arrival."""
        tenant = self.tenants[which]
        holds = [
            with_fields(hold_of(tenant, amount), overage_max_picousd=overage_max if amount else 0)
            for amount in amounts
        ]
        ledger = self.processes[0].ledger

        async def together() -> list[Any]:
            return await asyncio.gather(*[ledger.hold(hold) for hold in holds])

        for hold, decision in zip(holds, self.wait(together()), strict=True):
            expected = self.model.refusal(tenant, hold.hold_picousd, hold.overage_max_picousd)
            assert decision.refusal == expected, (decision, self.model)
            if expected is None:
                self.model.reserve(hold)

    @rule(side=sides, number=st.integers(0, 99), more=st.sampled_from((-5, -1, 0, 1, 7)))
    def settle(self, side: int, number: int, more: int) -> None:
        one = self.chosen(number, Phase.HELD, Phase.UNSETTLED)
        if one is None:
            return
        cost = min(max(0, one.amount + more), _most(one))
        assert self.resolved(side, settlement(one.hold, cost), one.hold)
        one.phase, one.cost = Phase.RESOLVED, cost

    @rule(side=sides, number=st.integers(0, 99))
    def give_back(self, side: int, number: int) -> None:
        one = self.chosen(number, Phase.HELD, Phase.UNSETTLED)
        if one is None:
            return
        assert self.resolved(side, release(one.hold), one.hold)
        one.phase = Phase.RESOLVED

    @rule(side=sides, number=st.integers(0, 99))
    def mark_unsettled(self, side: int, number: int) -> None:
        one = self.chosen(number, *Phase)
        if one is None:
            return
        marked = self.marked(side, one.hold)
        assert marked == (one.phase is Phase.HELD)
        if marked:
            one.phase = Phase.UNSETTLED

    @rule(number=st.integers(0, 99), costs=st.tuples(st.integers(0, 30), st.integers(0, 30)))
    def resolve_twice(self, number: int, costs: tuple[int, int]) -> None:
        """Resolves a call in both processes at once. Only the resolution that returns True counts."""
        one = self.chosen(number, *Phase)
        if one is None:
            return
        costs = (min(costs[0], _most(one)), min(costs[1], _most(one)))

        async def race() -> list[bool]:
            return await asyncio.gather(
                *[
                    process.ledger.resolve(settlement(one.hold, cost))
                    for process, cost in zip(self.processes, costs, strict=True)
                ]
            )

        first = self.wait(race())
        if one.phase is Phase.RESOLVED:
            assert first == [False, False]
        else:
            assert sorted(first) == [False, True]
            one.phase, one.cost = Phase.RESOLVED, costs[first.index(True)]

    # The rules below are crashes, revocations, caps, limits and the passing of time.

    @rule(side=sides)
    def crash(self, side: int) -> None:
        """Replaces a process, which loses its memory. With a lease of zero seconds, recovery takes the
        other process for dead too, so the holds of both processes become unsettled."""
        self.processes[side] = make_process(self.database, BOUNDED)
        # The clock stands still between steps, and a heartbeat at the current time is not expired.
        # Therefore, each crash advances the clock by a second.
        self.sweeps += 1
        self.clock.set(_at(self.model.today) + timedelta(seconds=self.sweeps))
        found = self.wait(Recovery(self.database, 0).ledger_recover())
        assert found.reservations == len(self.model.in_phase(Phase.HELD))
        for one in self.model.in_phase(Phase.HELD):
            one.phase = Phase.UNSETTLED
        type(self).crashes += 1

    @rule(which=sides)
    def revoke_key(self, which: int) -> None:
        """Revokes the key. If it is revoked already, replaces it, so that later calls are admitted."""
        tenant = self.tenants[which]
        if tenant.key_id in self.model.dead_keys:
            self.tenants[which] = self.wait(another_project(self.database, tenant))
        else:
            self.wait(revoke(self.processes[0], tenant))
            self.model.dead_keys.add(tenant.key_id)

    @rule(which=sides)
    def archive_project(self, which: int) -> None:
        tenant = self.tenants[which]
        if tenant.project_id in self.model.archived:
            self.tenants[which] = self.wait(another_project(self.database, tenant))
        else:
            self.wait(archive(self.processes[0], tenant))
            self.model.archived.add(tenant.project_id)

    @rule(which=sides, concurrency=st.integers(1, 4))
    def limit_concurrency(self, which: int, concurrency: int) -> None:
        project_id = self.tenants[which].project_id
        self.wait(self.accounts.limit_set(project_id, concurrency=concurrency))
        self.model.concurrency[project_id] = concurrency

    @rule(
        which=st.none() | sides,
        of_key=st.booleans(),
        amount=st.integers(0, 120),
        period=st.sampled_from(CapPeriod),
    )
    def set_cap(self, which: int | None, of_key: bool, amount: int, period: CapPeriod) -> None:
        tenant = None if which is None else self.tenants[which]
        use = self.wait(
            self.caps.cap_set(
                self.organization.organization_id,
                amount,
                period,
                None if tenant is None else tenant.project_id,
                tenant.key_id if tenant is not None and of_key else None,
            )
        )
        owner = self._owner(tenant, of_key)
        self.model.caps[owner, period] = amount
        assert use.remaining_picousd == amount - self.model.counted(owner, period)

    @rule(which=st.none() | sides, of_key=st.booleans())
    def clear_caps(self, which: int | None, of_key: bool) -> None:
        tenant = None if which is None else self.tenants[which]
        self.wait(
            self.caps.cap_clear(
                self.organization.organization_id,
                None if tenant is None else tenant.project_id,
                tenant.key_id if tenant is not None and of_key else None,
            )
        )
        self.model.clear_caps(self._owner(tenant, of_key))

    def _owner(self, tenant: LedgerTenant | None, of_key: bool) -> UUID | None:
        if tenant is None:
            return None
        return self.model.first_key(tenant.key_id) if of_key else tenant.project_id

    @rule(which=sides)
    def rotate_key(self, which: int) -> None:
        """Rotates the key. Later calls use the new key, and calls in flight keep the old key."""
        tenant = self.tenants[which]
        if tenant.key_id in self.model.dead_keys or tenant.project_id in self.model.archived:
            return
        made = replace(tenant, key_id=KeyId(uuid4()))
        self.wait(rotate(self.database, tenant, made))
        self.model.first_keys[made.key_id] = self.model.first_key(tenant.key_id)
        self.tenants[which] = made

    @rule(days=st.sampled_from((1, 1, 1, 6, 7, -1)))
    def days_pass(self, days: int) -> None:
        """Moves the clock past the ends of weeks, a leap day and the end of a month. The total is limited
        to the days that `report` covers."""
        if not 0 <= self.days_passed + days <= DAYS_MAX:
            return
        self.days_passed += days
        self.model.today += timedelta(days=days)
        self.clock.set(_at(self.model.today))

    # The rules and invariants below compare the ledger with the model.

    @rule(by_project=st.booleans())
    def report(self, by_project: bool) -> None:
        now = int(self.clock.now.timestamp())
        costs = Costs(self.database, Vault(b"0" * 32), lambda: now)
        query = CostQuery(
            start_time=now - (DAYS_MAX + 1) * 86400,
            end_time=now + 86400,
            project_ids=(),
            api_key_ids=(),
            group_by=(CostDimension.PROJECT_ID,) if by_project else (),
            limit=31,
        )
        page = self.wait(costs.cost_report(self.organization.organization_id, query, None))
        shown: dict[object, int] = {}
        for bucket in page.buckets:
            for row in bucket.rows:
                shown[row.project_id] = shown.get(row.project_id, 0) + row.amount_picousd
        assert sum(shown.values()) == self.model.settled
        if by_project:
            for project_id, amount in shown.items():
                mine = self.model.of_project(project_id)  # type: ignore[arg-type]
                assert amount == sum(one.cost for one in mine)

    @rule(side=sides)
    def fold(self, side: int) -> None:
        found = self.wait(balance_of(self.processes[side], self.organization))
        assert found == self.model.balance()

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        type(self).steps += 1
        found = self.wait(self.accounts.credit_show(self.organization.organization_id))
        expected = self.model.balance()
        shown = Balance(
            found.available_picousd,
            found.held_picousd,
            found.unsettled_picousd,
            found.settled_picousd,
            expected.overage,
        )
        assert shown == expected, self.model

    @invariant()
    def no_burst_ends_below_the_bound(self) -> None:
        if hasattr(self, "model"):
            assert self.model.granted - self.model.settled >= -OVERAGE_BOUND
            assert self.model.worst_balance >= -OVERAGE_BOUND

    @invariant()
    def caps_are_shown_as_they_count(self) -> None:
        if not hasattr(self, "model"):
            return
        shown = {
            (use.first_key_id or use.project_id, use.cap.period): use.remaining_picousd
            for use in self.wait(self.caps.cap_show(self.organization.organization_id))
        }
        assert shown == {
            of: amount - self.model.counted(*of) for of, amount in self.model.caps.items()
        }

    @invariant()
    def every_invariant_holds(self) -> None:
        if hasattr(self, "model"):
            assert self.wait(differences(self.database)) == []

    def teardown(self) -> None:
        for process in getattr(self, "processes", ()):
            self.wait(process.ledger.drain())
