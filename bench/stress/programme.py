"""Runs the steps of the load programme. Figures that are compared are measured shortly after each other."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import median

from bench.figures import WHOLE_ANSWER
from bench.gateway import Running, Tenant
from bench.load import run_load
from bench.stress.conditions import CONDITIONS, Condition, chat, flood, junk
from bench.stress.open_loop import Arrivals, OpenLoop, percentile_ms
from bench.stress.quiet import Quiet, QuietCaller, quiet_calls
from bench.stress.vitals import Vitals, read_vitals, settles
from bench.upstream import PACED

_CLOSED_CONNECTIONS = 32
_CLOSED_REQUESTS = 1000
# The rates of the open loop, as shares of the rate that the closed loop reaches.
_STEPS = (0.4, 0.6, 0.8, 1.0, 1.2)
_STEP_S = 3.0
# At the knee, at least this share of the requests is served.
_SERVED_MIN = 0.99
# The median time at the knee is at most this multiple of the median time at the lowest rate.
_SLOWER_MAX = 4.0
_KNEE_S = 5.0
_OVERLOAD = 3.0
_OVERLOAD_S = 6.0
_SETTLING_S = 3.0
_RECOVERED_WITHIN_S = 30.0
_CONDITION_S = 6.0
_AT_REST_WITHIN_S = 30.0
_DESCRIPTORS_SLACK = 16
_TASKS_SLACK = 8


@dataclass
class Round:
    """One measurement at the knee and one at overload. `recovered_s` is None if recovery took too long."""

    knee: Arrivals
    overload: Arrivals
    recovered_s: float | None


@dataclass
class Beside:
    """The times of a quiet client while other clients are hostile, and the gateway's vitals afterwards."""

    name: str
    connections: int
    alone_p50_ms: float
    alone_p99_ms: float
    p50_ms: float
    p99_ms: float
    failures: int
    calls: int
    # The seconds until the gateway's vitals were as before, or None if they were not in time.
    at_rest_s: float | None
    vitals: Vitals


@dataclass
class Programme:
    gateway: Running
    # Starts a second gateway with a separate database.
    start_another: Callable[[], AbstractContextManager[Running]]
    closed_per_second: float = 0.0
    knee_per_second: float = 0.0
    steps: list[tuple[float, Arrivals]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)
    # The quiet client's times while a flood goes to the second gateway. They show the effect of the
    # busy machine alone.
    elsewhere: dict[str, Quiet] = field(default_factory=dict)
    baseline: Vitals | None = None

    async def run(self, rounds: int) -> None:
        requests = [chat(tenant, model=PACED, stream=False) for tenant in self._callers]
        _tell("warming up, and the closed loop")
        await self._closed_loop(requests)
        self.baseline = await self._at_first_rest()
        open_loop = OpenLoop(self.gateway.port, callers=len(requests))
        await open_loop.connect()
        try:
            await self._find_knee(open_loop, requests)
            for number in range(rounds):
                _tell(f"overload, round {number + 1} of {rounds}")
                self.rounds.append(await self._round(open_loop, requests))
        finally:
            open_loop.close()
        for name, condition in CONDITIONS.items():
            _tell(name)
            self.beside.append(await self._beside(name, condition))
        floods = {
            "another organization's flood": flood(_OVERLOAD * self.knee_per_second),
            "requests for nothing": junk,
        }
        for name, condition in floods.items():
            _tell(name)
            self.beside.append(await self._beside(name, condition))
            _tell("the same on a gateway of its own")
            self.elsewhere[name] = await self._beside_another_gateway(condition)

    @property
    def _callers(self) -> Sequence[Tenant]:
        return self.gateway.tenants[2:]

    async def _closed_loop(self, requests: list[bytes]) -> None:
        rates = []
        for _ in range(4):
            found = await run_load(
                self.gateway.port,
                requests,
                connections=_CLOSED_CONNECTIONS,
                count=_CLOSED_REQUESTS,
                whole=WHOLE_ANSWER,
            )
            rates.append(found.per_second)
        # The first run is a warm-up.
        self.closed_per_second = median(rates[1:])

    async def _at_first_rest(self) -> Vitals:
        await asyncio.sleep(5)  # The gateway updates these metrics every two seconds.
        return await asyncio.to_thread(read_vitals, self.gateway)

    async def _find_knee(self, open_loop: OpenLoop, requests: list[bytes]) -> None:
        for step in _STEPS:
            rate = step * self.closed_per_second
            _tell(f"{rate:.0f} calls a second")
            found = await open_loop.run(requests, per_second=rate, seconds=_STEP_S)
            self.steps.append((rate, found))
        slowest = percentile_ms(self.steps[0][1].served_s, 50)
        self.knee_per_second = max(
            (
                rate
                for rate, found in self.steps
                if len(found.served_s) >= _SERVED_MIN * found.offered
                and percentile_ms(found.served_s, 50) <= _SLOWER_MAX * slowest
            ),
            default=self.steps[0][0],
        )

    async def _round(self, open_loop: OpenLoop, requests: list[bytes]) -> Round:
        request = chat(self.gateway.tenants[0], stream=False)
        async with quiet_calls(self.gateway.port, request) as before:
            await asyncio.sleep(_CONDITION_S / 2)
        quiet = QuietCaller(self.gateway.port, request)
        knee = await open_loop.run(requests, per_second=self.knee_per_second, seconds=_KNEE_S)
        overload = await open_loop.run(
            requests,
            per_second=_OVERLOAD * self.knee_per_second,
            seconds=_OVERLOAD_S,
            settling_s=_SETTLING_S,
        )
        recovered_s = await quiet.until_as_fast_as(2 * before.p50_ms, within_s=_RECOVERED_WITHIN_S)
        quiet.close()
        return Round(knee, overload, recovered_s)

    async def _beside(self, name: str, condition: Condition) -> Beside:
        quiet_tenant, hostile = self.gateway.tenants[0], self.gateway.tenants[1]
        port, request = self.gateway.port, chat(quiet_tenant, stream=False)
        async with quiet_calls(port, request) as alone:
            await asyncio.sleep(_CONDITION_S / 2)
        async with (
            condition(self.gateway, hostile) as connections,
            quiet_calls(port, request) as found,
        ):
            await asyncio.sleep(_CONDITION_S)
        at_rest_s, vitals = await settles(
            self.gateway, self._is_at_rest, within_s=_AT_REST_WITHIN_S
        )
        return Beside(
            name,
            connections,
            alone.p50_ms,
            alone.p99_ms,
            found.p50_ms,
            found.p99_ms,
            found.failures,
            len(found.seconds),
            at_rest_s,
            vitals,
        )

    async def _beside_another_gateway(self, condition: Condition) -> Quiet:
        request = chat(self.gateway.tenants[0], stream=False)
        with ExitStack() as until_end:
            # The start needs a thread, because it runs its own event loop.
            another = await asyncio.to_thread(until_end.enter_context, self.start_another())
            async with (
                condition(another, another.tenants[1]),
                quiet_calls(self.gateway.port, request) as found,
            ):
                await asyncio.sleep(_CONDITION_S)
        return found

    def _is_at_rest(self, vitals: Vitals) -> bool:
        baseline = self.baseline
        assert baseline is not None
        return (
            vitals.held_picousd == 0
            and vitals.running_calls == 0
            and vitals.descriptors <= baseline.descriptors + _DESCRIPTORS_SLACK
            and vitals.tasks <= baseline.tasks + _TASKS_SLACK
        )


def _tell(step: str) -> None:
    print(f"... {step}", file=sys.stderr, flush=True)
