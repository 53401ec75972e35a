"""Runs one history of calls that a seed determines. The call script and the ledger service are real, the
store and the provider are simulated. Prices change, the clock jumps, clients leave, processes are killed.

The charges in the ledger are compared with the provider's bills. This module computes the prices of the
bills in the simplest way.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from fractions import Fraction
from typing import Any, cast
from uuid import UUID

from msgspec.structs import replace

from tests.proofs.memory_books import Books, cost_of
from tests.proofs.memory_store import MemoryDatabase, MemoryExcesses, MemoryStore, NoPolicies
from tests.proofs.seeded_loop import SeededLoop
from tests.proofs.simulated_provider import (
    FREE,
    LONG_PROMPT,
    UNKNOWN,
    UNTOLD,
    Bill,
    SimulatedProvider,
)
from tests.proofs.simulation import CALL, MODEL, quiet
from tollkeeper.calls.admission import Admission
from tollkeeper.calls.inference import Inference
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.recorder import CallRecorder
from tollkeeper.calls.running_calls import InferenceLimits
from tollkeeper.calls.tab import Tab
from tollkeeper.calls.token_counting import TokenCounting
from tollkeeper.core.access import KeyId, KeyStatus, OrganizationId, ProjectCaller, ProjectId
from tollkeeper.core.catalog import Model, TokenBounds
from tollkeeper.core.declared_prices import (
    DeclaredPrices,
    DeclaredTier,
    pricing_from_declared,
    pricing_with_variants,
)
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.inference import Batch, Call
from tollkeeper.core.pricing import PriceChange
from tollkeeper.core.runtime.overload import OverloadGate
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.holds.rule import RATE_UNITS_PER_REQUEST, AccountState, ProjectState
from tollkeeper.money.holds.spend import Spend
from tollkeeper.money.holds.values import Mark, Resolution, ResolutionKind
from tollkeeper.policies.checks import PolicyChecks
from tollkeeper.policies.policies import Policies
from tollkeeper.providers.fan_out import FanOutBackend

CALLS_MAX = 6
_LASTS_S = 4.0  # simulated time within which all calls start
# Prices of prompt, cached prompt, completion and request, in picousd: for short and long prompts,
# and after the change.
SHORT, LONG, CHANGED = (4, 2, 8, 3), (12, 6, 20, 3), (40, 20, 80, 30)
MULTIPLIERS = {"flex": "0.5", "priority": "2"}
CHANGE_AT = 1000  # timestamp of the price change


def _declared(prices: tuple[int, ...]) -> dict[str, str]:
    names = ("prompt", "input_cache_read", "completion", "request")
    return {name: f"0.{price:012d}" for name, price in zip(names, prices, strict=True)}


def _model() -> Model:
    tiers = [DeclaredTier(LONG_PROMPT, _declared(LONG))]
    ordinary = pricing_with_variants(DeclaredPrices(_declared(SHORT), tiers, MULTIPLIERS))
    change = PriceChange(CHANGE_AT, pricing_from_declared(_declared(CHANGED), param="changed"))
    # No answer of the simulated provider exceeds these lengths.
    return replace_fields(
        MODEL,
        pricing=ordinary,
        price_changes=(change,),
        context_length=400,
        max_output_length=40,
    )


PRICED_MODEL = _model()


def billed(bills: list[Bill], admitted_at: int) -> int:
    """Returns the cost of the answers at the prices of the call's admission."""
    total = CHANGED[3] if admitted_at >= CHANGE_AT else SHORT[3]
    for bill in bills:
        prices, multiplier = CHANGED, Fraction(1)
        if admitted_at < CHANGE_AT:
            prices = LONG if bill.prompt > LONG_PROMPT else SHORT
            multiplier = Fraction(MULTIPLIERS.get(bill.tier or "", "1"))
        tokens = (bill.prompt - bill.cached, bill.cached, bill.completion)
        amount = sum(price * count for price, count in zip(prices, tokens, strict=False))
        total += int(amount * multiplier)
    return total


@dataclass
class Asked:
    """One request, and its result for the client."""

    call: Call
    # The timestamp of the admission.
    admitted_at: int | None = None
    # None until the call has an answer or an error.
    succeeded: bool | None = None
    left: bool = False
    disconnect: Callable[[], None] = lambda: None


class _Recorder:
    # Calls are not traced.
    tracer = None

    def ended(self, tab: Tab) -> None:
        """Records nothing."""


class _Sink:
    async def take(self, batch: Batch) -> None:
        await asyncio.sleep(0)

    def held_back(self) -> None:
        pass

    def text_writer(self) -> None:
        """Returns None, so that the whole answer arrives as events."""


@dataclass
class _Source:
    asked: Asked
    operation: str = "chat_create"
    is_call: bool = False

    def on_disconnect(self, leave: Callable[[], None]) -> None:
        self.asked.disconnect = leave

    def error_values(self, error: BaseException) -> tuple[int, str, None, None]:
        return 500, "", None, None


class CallHistory:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = CHANGE_AT - 1
        self.tenant = (OrganizationId(self.uuid()), ProjectId(self.uuid()), KeyId(self.uuid()))
        self.database = MemoryDatabase(self.rng, self._open_books())
        self.provider = SimulatedProvider(self.rng)
        self.stores = [MemoryStore(self.database, self.uuid()) for _ in range(2)]
        self.ledgers = [
            Ledger(store, NoPolicies(), MemoryExcesses(store, lambda: self.now), lambda: True)
            for store in self.stores
        ]
        # Either the model is declared to exceed its holds, or the processes have to find out.
        unbounded = self.rng.random() < 0.5
        self.model = replace_fields(PRICED_MODEL, token_bounds=TokenBounds(unbounded=unbounded))
        self.gateways = [self._gateway(ledger) for ledger in self.ledgers]
        self.asked: dict[UUID, Asked] = {}
        self.seen: Counter[str] = Counter()
        self._asked_by: dict[asyncio.Task[Any] | None, Asked] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def _open_books(self) -> Books:
        organization_id, project_id, key_id = self.tenant
        credit = self.rng.choice((3_000, 20_000, 10**6))
        project = ProjectState(
            spend=Spend(),
            archived=False,
            live_holds=0,
            concurrency=100,
            requests_per_minute=6000,
            rate_units=6000 * RATE_UNITS_PER_REQUEST,
            rate_at_us=0,
        )
        account = AccountState(
            available_picousd=credit,
            overage_picousd=0,
            spend=Spend(),
            projects={project_id: project},
            keys={key_id: KeyStatus.ACTIVE},
            overage_bound_picousd=self.rng.choice((None, 0, 500, 50_000)),
        )
        return Books({organization_id: credit}, {organization_id: account})

    def _gateway(self, ledger: Ledger) -> Inference:
        return Inference(
            Admission(ledger, self._clock),
            cast("TokenCounting", None),
            InferenceLimits(deadline_s=60, drain_s=1, drains_max=2, calls_max=1000),
            policies=cast("Policies", None),
            checks=PolicyChecks(None),
            recorder=cast("CallRecorder", _Recorder()),
            overload=OverloadGate(0),
        )

    def _clock(self) -> int:
        """Returns the time. Stores the time of a call's first read, whose prices must stay in force."""
        asked = self._asked_by[asyncio.current_task()]
        asked.admitted_at = self.now if asked.admitted_at is None else asked.admitted_at
        return self.now

    async def run(self) -> None:
        for _ in range(self.rng.randint(2, CALLS_MAX)):
            self._start(self._ask())
        for _ in range(self.rng.randrange(5)):
            self._start(self._fault())
        # Calls of a killed process never end. All other calls have ended after this time.
        for _ in range(30):
            await asyncio.wait(self._tasks, timeout=_LASTS_S)
        await self.database.settle_down()
        for store, ledger in zip(self.stores, self.ledgers, strict=True):
            assert store.killed or await ledger.drain()
        await self._recover_killed()
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        self._check()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _ask(self) -> None:
        await asyncio.sleep(self.rng.random() * _LASTS_S)
        organization_id, project_id, key_id = self.tenant
        call = replace(
            CALL,
            request_id=str(self.uuid()),
            organization_id=organization_id,
            project_id=project_id,
            key_id=key_id,
            model=self.model,
            choices=self.rng.choice((1, 1, 1, 3)),
            output_tokens_max=8,
        )
        asked = Asked(call)
        self.asked[UUID(call.request_id)] = asked
        self._asked_by[asyncio.current_task()] = asked
        gateway = self.rng.choice(self.gateways)
        try:
            caller = ProjectCaller(organization_id, project_id, key_id, frozenset())
            plan = Plan(caller, self.model, FanOutBackend(self.provider, concurrency=2))
            await gateway.infer(call, plan, _Sink(), _Source(asked))
            asked.succeeded = True
        except TollkeeperError as exc:
            asked.succeeded = False
            self.seen["calls refused by overage in flight"] += "its overage bound" in exc.message

    async def _fault(self) -> None:
        await asyncio.sleep(self.rng.random() * 2 * _LASTS_S)
        match self.rng.randrange(6):
            case 0 | 1:
                asked = self.rng.choice(list(self.asked.values()) or [None])
                if asked is not None:
                    asked.left = True
                    asked.disconnect()
                    self.seen["callers that left"] += 1
            case 2:
                self.database.crash()
            case 3:
                self.rng.choice(self.stores).killed = True
                self.seen["processes killed"] += 1
            case 4:
                # The clock jumps to a time before or after the price change.
                self.now = CHANGE_AT + self.rng.choice((-100_000, -1, 0, 100_000))
                self.seen["clock jumps"] += 1
            case 5:
                try:
                    await self.database.grant(self.tenant[0], 10**6)
                except TollkeeperError:
                    return

    async def _recover_killed(self) -> None:
        sweeper = MemoryStore(self.database, self.uuid())
        killed = {store.process_id for store in self.stores if store.killed}
        for row in list(self.database.books.reservations.values()):
            if row.process_id in killed:
                await sweeper.mark_all([Mark(row.hold.organization_id, row.hold.id, "it died")])

    # The methods below check the ledger at the end of the history.

    def _check(self) -> None:
        books = self.database.books
        books.check()
        self.seen["organizations stopped"] += len(books.debtors)
        for request_id, asked in self.asked.items():
            bills = self.provider.bills.get(str(request_id), [])
            for bill in bills:
                self.seen[bill.manner.value] += 1
            self.seen["calls fanned out"] += len(bills) > 1
            resolution = books.resolutions.get(request_id)
            if asked.succeeded:
                assert resolution is not None, "an answer that was complete is settled"
                assert resolution.kind is ResolutionKind.SETTLED
            if resolution is not None:
                self._check_resolution(asked, bills, resolution)

    def _check_resolution(self, asked: Asked, bills: list[Bill], resolution: Resolution) -> None:
        manners = {bill.manner for bill in bills}
        if resolution.kind is ResolutionKind.RELEASED:
            assert manners <= set(FREE), f"{manners} may be billed, and was released"
            return
        assert manners - set(FREE), "a call that was refused is not charged"
        charged = [bill for bill in bills if bill.manner not in FREE]
        known = [bill for bill in charged if bill.manner not in (*UNTOLD, *UNKNOWN)]
        assert asked.admitted_at is not None
        expected = billed(known, asked.admitted_at)
        if resolution.estimated:
            assert cost_of(resolution) > SHORT[3], "what was generated is not free"
        if asked.left:
            return
        # Of several answers, those with a report are charged exactly, even if others have none.
        if resolution.estimated:
            assert known != charged, "the provider has said what it bills"
            assert cost_of(resolution) >= expected, (cost_of(resolution), expected, bills)
        else:
            assert known == charged, "nobody has said what it cost"
            assert len(bills) == asked.call.choices or not asked.succeeded
            assert cost_of(resolution) == expected, (cost_of(resolution), expected, bills)


def run_call_history(seed: int) -> Counter[str]:
    """Runs the history of a seed and returns counts of its events. If a check fails, raises an error that
    names the seed."""
    loop = SeededLoop(seed)  # type: ignore[abstract]

    async def main() -> CallHistory:
        history = CallHistory(seed)
        await history.run()
        return history

    with quiet(seed):
        try:
            history = loop.run(main())
            faults = [fault for fault in loop.faults if "exception" in fault]
            assert not faults, faults
        except BaseException as exc:
            raise AssertionError(f"history of seed {seed}: {exc!r}") from exc
    return history.seen
