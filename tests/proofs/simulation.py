"""Runs one history of the ledger that a seed determines: processes, clients, faults, and a final check.

The code under test is the real `Ledger`, `GroupQueue` and `Admission`. The event loop and the store
are simulated, and the seed controls them.
"""

import asyncio
import math
import random
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from fractions import Fraction
from typing import Any
from unittest import mock
from uuid import UUID

from msgspec.structs import replace

from tests.proofs.capped_accounts import random_caps
from tests.proofs.memory_books import Books, cost_of
from tests.proofs.memory_store import MemoryDatabase, MemoryExcesses, MemoryStore, NoPolicies
from tests.proofs.seeded_loop import SeededLoop
from tollkeeper.calls.admission import Admission
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.tab import Tab
from tollkeeper.core.access import KeyId, KeyStatus, OrganizationId, ProjectCaller, ProjectId
from tollkeeper.core.catalog import Model, TokenBounds
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.inference import Call
from tollkeeper.core.metering import Meter
from tollkeeper.core.pricing import Pricing
from tollkeeper.core.pricing import cost_of as price_of
from tollkeeper.core.prompt import Prompt
from tollkeeper.core.runtime import batches as batches_module
from tollkeeper.core.runtime.overload import OwnerCalls
from tollkeeper.core.usage import Usage
from tollkeeper.money.holds import ledger as ledger_module
from tollkeeper.money.holds import service as holds_module
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.holds.rule import RATE_UNITS_PER_REQUEST, AccountState, ProjectState
from tollkeeper.money.holds.spend import Spend
from tollkeeper.money.holds.values import Hold, Mark, ResolutionKind
from tollkeeper.money.overage import alerts as overage_alerts_module
from tollkeeper.money.overage.rule import Excess

PROCESSES = 2
CALLS_MAX = 10
_LASTS_S = 4.0  # simulated time within which calls and faults start
DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Process:
    store: MemoryStore
    ledger: Ledger
    admission: Admission


@dataclass
class Observed:
    """The results that the clients and backends of a history have observed, by reservation id."""

    # The call was dispatched, after its hold was acknowledged.
    dispatched: set[UUID] = field(default_factory=set)
    # The call was refused, failed or cancelled before dispatch, so its hold must not stay.
    turned_away: set[UUID] = field(default_factory=set)
    # The cost of each attempted settlement.
    wanted: dict[UUID, set[int]] = field(default_factory=dict)
    # The acknowledged results: settled at a cost, released, or unsettled.
    settled: dict[UUID, int] = field(default_factory=dict)
    released: set[UUID] = field(default_factory=set)
    unsettled: set[UUID] = field(default_factory=set)
    kills: int = 0


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tenants = [
            (OrganizationId(self.uuid()), ProjectId(self.uuid()), KeyId(self.uuid()))
            for _ in range(2)
        ]
        organization_id, _, _ = self.tenants[0]
        self.tenants.append((organization_id, ProjectId(self.uuid()), KeyId(self.uuid())))
        # Either the model is declared to exceed its holds, or the processes have to find out.
        self.model = self.rng.choice((MODEL, DECLARED_MODEL))
        self.database = MemoryDatabase(self.rng, self._open_books())
        self.processes = [self._process() for _ in range(PROCESSES)]
        self.observed = Observed()
        self._background: list[asyncio.Task[Any]] = []

    def uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def _process(self) -> Process:
        store = MemoryStore(self.database, self.uuid())
        ledger = Ledger(store, NoPolicies(), MemoryExcesses(store, self._now), lambda: True)
        return Process(store, ledger, Admission(ledger, self._now))

    def _now(self) -> int:
        return self.database.now_us // 10**6

    def _open_books(self) -> Books:
        granted = {
            organization_id: self.rng.randrange(60) for organization_id, _, _ in self.tenants
        }
        accounts = {
            organization_id: AccountState(
                available_picousd=credit,
                overage_picousd=0,
                spend=Spend(),
                projects={},
                keys={},
                overage_bound_picousd=self.rng.choice((None, 0, 5, 60)),
            )
            for organization_id, credit in granted.items()
        }
        for organization_id, project_id, key_id in self.tenants:
            accounts[organization_id].projects[project_id] = ProjectState(
                spend=Spend(),
                archived=False,
                live_holds=0,
                concurrency=self.rng.choice((2, 100)),
                requests_per_minute=6000,
                rate_units=6000 * RATE_UNITS_PER_REQUEST,
                rate_at_us=0,
            )
            accounts[organization_id].keys[key_id] = KeyStatus.ACTIVE
        caps = {}
        for organization_id, state in accounts.items():
            caps[organization_id], first_keys = random_caps(self.rng, organization_id, self.tenants)
            accounts[organization_id] = replace(state, first_keys=first_keys)
        return Books(granted, accounts, caps)

    async def run(self) -> None:
        calls = [self._start(self._call()) for _ in range(self.rng.randint(3, CALLS_MAX))]
        for _ in range(self.rng.randrange(4)):
            self._start(self._fault(calls))
        # Calls of a killed process never end. All other calls have ended after this time.
        for _ in range(10):
            await asyncio.wait(self._background, timeout=_LASTS_S)
        await self.database.settle_down()
        living = [process for process in self.processes if not process.store.killed]
        for process in living:
            assert await process.ledger.drain(), "a live process has written everything"
            assert process.ledger.open_holds == 0
        for process in living:
            await process.ledger.excesses.load()
            cases = self.database.books.excesses
            assert all(_expects(process, case) for case in cases), "and soon those of the others"
        await self._recover_killed()
        for task in self._background:
            if task.done() and not task.cancelled():
                task.result()
        self._check()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._background.append(task)
        return task

    # The methods below run one call.

    async def _call(self) -> None:
        await asyncio.sleep(self.rng.random() * _LASTS_S / 2)
        process = self.rng.choice(self.processes)
        tenant = self.rng.choice(self.tenants)
        call = self._make_call(tenant)
        reservation_id = UUID(call.request_id)
        before = self.database.counted.crashes
        if self.rng.random() < 0.3:
            with suppress(TollkeeperError):
                await process.ledger.excesses.load()
        known, now = process.ledger.excesses.of(call.model.id), self._now()
        try:
            tab = _tab(call)
            await process.admission.hold(tab, counted=self.rng.randrange(4))
        except BaseException as exc:
            if not process.store.killed:
                self.observed.turned_away.add(reservation_id)
            if isinstance(exc, TollkeeperError):
                self._check_refusal(exc)
                return
            raise
        assert tab.hold is not None
        self._check_overage(process, tab, known, now)
        self.observed.dispatched.add(reservation_id)
        crashed = self.database.counted.crashes > before
        assert crashed or reservation_id in self.database.books.reservations
        # From here on, the call has its own task and does not depend on its client.
        ending = self._start(self._dispatched(process, tab))
        await asyncio.shield(ending)

    def _make_call(self, tenant: tuple[OrganizationId, ProjectId, KeyId]) -> Call:
        organization_id, project_id, key_id = tenant
        return replace(
            CALL,
            request_id=str(self.uuid()),
            organization_id=organization_id,
            project_id=project_id,
            key_id=key_id,
            model=self.model,
            choices=self.rng.randint(1, 3),
            output_tokens_max=self.rng.randint(1, 4),
        )

    async def _dispatched(self, process: Process, tab: Tab) -> None:
        assert tab.hold is not None
        await asyncio.sleep(self.rng.random() * _LASTS_S / 2)
        for _ in range(self.rng.choice((1, 1, 1, 2))):  # some calls are ended twice
            match self.rng.randrange(5):
                case 0:
                    await process.admission.release(tab)
                    self.observed.released.add(tab.hold.id)
                case 1:
                    await process.admission.leave_unsettled(tab, "nobody knows")
                    self.observed.unsettled.add(tab.hold.id)
                case _:
                    await self._settle(process, tab, tab.hold)

    async def _settle(self, process: Process, tab: Tab, hold: Hold) -> None:
        usage = Usage(prompt_tokens=self.rng.randrange(6), completion_tokens=self.rng.randrange(14))
        cost = sum(price_of(hold.pricing, usage, 0).values())
        self.observed.wanted.setdefault(hold.id, set()).add(cost)
        charged, written = process.admission.settle(tab, usage)
        await written
        assert charged == cost
        now = self._now()
        declared = self.model is DECLARED_MODEL
        expected = tab.plan.prices_at(now).cost_max(hold.bounds) if declared else hold.hold_picousd
        if cost > expected:
            case = Excess(hold.model, tab.backend_name, hold.hold_picousd, cost, now)
            assert _expects(process, case), "a process knows its own cases at once"
        self.observed.settled.setdefault(hold.id, cost)

    # The methods below cause faults and recover from them.

    async def _fault(self, calls: list[asyncio.Task[None]]) -> None:
        await asyncio.sleep(self.rng.random() * _LASTS_S)
        match self.rng.randrange(8):
            case 0 | 1 | 2:
                # A client leaves at any step of its call.
                self.rng.choice(calls).cancel()
            case 3:
                await self._mark_holds_of(self.rng.choice(self.processes))
            case 4:
                self.database.crash()
            case 5:
                victim = self.rng.choice(self.processes)
                victim.store.killed = True
                self.observed.kills += 1
            case 6:
                organization_id, _, key_id = self.rng.choice(self.tenants)
                with suppress(TollkeeperError):
                    await self.database.change_key(organization_id, key_id, KeyStatus.REVOKED)
            case 7:
                # The clock moves forward or back.
                self.database.now_us += self.rng.randrange(-(10**9), 10**9)
                self.database.now_us += self.rng.choice((-1, 0, 1, 7)) * DAY_US

    async def _mark_holds_of(self, process: Process) -> None:
        """Marks the process's holds as unsettled, as recovery does if it takes a process for dead. The
        process may be alive."""
        sweeper = MemoryStore(self.database, self.uuid())
        for row in list(self.database.books.reservations.values()):
            if row.process_id == process.store.process_id:
                mark = Mark(row.hold.organization_id, row.hold.id, "the process died")
                try:
                    await sweeper.mark_all([mark])
                except TollkeeperError:
                    return

    async def _recover_killed(self) -> None:
        for process in self.processes:
            if process.store.killed:
                await self._mark_holds_of(process)

    def _killed(self) -> set[UUID]:
        return {one.store.process_id for one in self.processes if one.store.killed}

    # The methods below check refusals, and the ledger at the end of the history.

    def _check_overage(self, process: Process, tab: Tab, known: Sequence[Excess], now: int) -> None:
        """Checks that as much overage is expected of the call as there is a reason to expect, by what
        the process knew before, and not more than that, by what it knows now."""
        assert tab.hold is not None
        expected = tab.hold.overage_max_picousd
        assert expected >= overage_of(known, tab.hold, tab.plan, now)
        if self.model is MODEL:
            known_now = (*known, *process.ledger.excesses.of(MODEL.id))
            assert expected <= overage_of(known_now, tab.hold, tab.plan, now)

    def _check_refusal(self, error: TollkeeperError) -> None:
        """Checks that a call whose hold the credit covers is refused only for a reason to expect that it,
        or another call in flight, costs more. Another process may know of the reason first."""
        if "overage bound" in error.message:
            assert self.model is DECLARED_MODEL or self.database.books.excesses

    def _check(self) -> None:
        books, observed = self.database.books, self.observed
        books.check()
        for reservation_id, row in books.reservations.items():
            resolved = books.resolutions.get(reservation_id)
            assert resolved or reservation_id in books.marks, "nothing is held any more"
            if reservation_id in observed.turned_away:
                killed = row.process_id in self._killed()
                assert resolved or killed, "the hold of a call that never was is given back"
                assert not resolved or resolved.kind is ResolutionKind.RELEASED
            if resolved and resolved.kind is ResolutionKind.SETTLED:
                assert cost_of(resolved) in observed.wanted[reservation_id]
        for reservation_id, cost in observed.settled.items():
            resolved = books.resolutions.get(reservation_id)
            assert resolved, "what was acknowledged as settled is resolved"
            if (
                reservation_id not in observed.released
                and len(observed.wanted[reservation_id]) == 1
            ):
                assert cost_of(resolved) == cost
        for reservation_id in observed.unsettled - observed.released - set(observed.settled):
            assert reservation_id in books.marks, "unknown is in the ledger"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of the events of one history, and a fingerprint of its final state."""

    steps: int
    commits: int
    doubts: int
    crashes: int
    kills: int
    restored: int
    fingerprint: int


def _tab(call: Call) -> Tab:
    """Returns a tab with only the fields that the admission and the ledger need."""
    caller = ProjectCaller(call.organization_id, call.project_id, call.key_id, frozenset())
    backend = mock.Mock(counts_tokens=False, prompts_sent=lambda _: 1)
    plan = Plan(caller, call.model, backend)
    none: Any = None
    return Tab(call, plan, none, "chat_create", 0.0, none, OwnerCalls(0), Meter(call, 0))


def run_history(seed: int) -> Outcome:
    """Runs the history of a seed. If a check fails, raises an error that names the seed."""
    loop = SeededLoop(seed)  # type: ignore[abstract]
    with quiet(seed):
        try:
            history = _within(loop, seed)
            faults = [fault for fault in loop.faults if "exception" in fault]
            assert not faults, faults
        except BaseException as exc:
            raise AssertionError(f"history of seed {seed}: {exc!r}") from exc
    counted = history.database.counted
    return Outcome(
        steps=loop.steps,
        commits=counted.commits,
        doubts=counted.doubts,
        crashes=counted.crashes,
        kills=history.observed.kills,
        restored=counted.restored,
        fingerprint=hash((loop.steps, repr(sorted(history.database.books.resolutions.items())))),
    )


def _within(loop: SeededLoop, seed: int) -> History:
    async def main() -> History:
        history = History(seed)
        await history.run()
        return history

    return loop.run(main())


class _NullLogger:
    """A logger that logs nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@contextmanager
def quiet(seed: int) -> Iterator[None]:
    """Takes the ledger's jitter from the seed, and switches its log off."""
    jitter = random.Random(seed)
    with (
        mock.patch.object(ledger_module, "_log", _NullLogger()),
        mock.patch.object(holds_module, "_log", _NullLogger()),
        mock.patch.object(overage_alerts_module, "_log", _NullLogger()),
        mock.patch.object(holds_module, "random", jitter),
        mock.patch.object(batches_module, "random", jitter),
    ):
        yield


def _expects(process: Process, case: Excess) -> bool:
    return any(not case.exceeds(known) for known in process.ledger.excesses.of(case.model))


def overage_of(known: Sequence[Excess], hold: Hold, plan: Plan, now: int) -> int:
    """Returns, with fractions, the overage that the known cases let expect of a call."""
    cost_max = plan.prices_at(now).cost_max(hold.bounds)
    most = 0
    for case in known:
        ratio = Fraction(case.cost_picousd, max(case.hold_picousd, 1)) - 1
        if not case.hold_picousd:
            ratio += 1
        days = max(0, now - case.at) // 86_400
        amount = math.ceil(ratio / 2**days * max(hold.hold_picousd, 1))
        limit = max(cost_max - hold.hold_picousd, case.cost_picousd - case.hold_picousd)
        most = max(most, min(amount, limit))
    return most


MODEL = Model(
    id="example/chat",
    backend="cluster",
    upstream_model="chat",
    owned_by="",
    name="",
    display_name="",
    created=0,
    # The highest token counts that `_settle` uses.
    context_length=5,
    max_output_length=13,
    input_modalities=(),
    output_modalities=(),
    quantization="",
    supported_sampling_parameters=(),
    supported_features=(),
    sampling_limits={},
    sampling_limits_revision="",
    required_checks=(),
    is_ready=True,
    pricing=Pricing(prompt=1, completion=1, image=0, request=1, input_cache_read=0, declared={}),
    options={},
)
DECLARED_MODEL = replace_fields(MODEL, token_bounds=TokenBounds(unbounded=True))
_NOBODY = UUID(int=0)
CALL = Call(
    request_id="",
    organization_id=OrganizationId(_NOBODY),
    project_id=ProjectId(_NOBODY),
    key_id=KeyId(_NOBODY),
    model=MODEL,
    choices=1,
    output_tokens_max=1,
    output_limit_field="max_tokens",
    streamed=False,
    prompt=Prompt(turns=()),
)
