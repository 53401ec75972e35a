"""Tests a quiet tenant under each attack: it gets no refusal and an exact bill, and no call or hold is
left. With --prove, the attacks are larger, and the summary shows a table of the results."""

import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.journeys.isolation.attacks import ATTACKS, by_words, judge_by_words
from tests.support.judged_gateway import JudgedGateway, judged_gateway
from tests.support.proof import Proof
from tests.support.scripted_gateway import COST, eventually

_TABLE = "isolation: a quiet tenant under each attack"
_UNDISTURBED = "(undisturbed)"
_numbers = itertools.count()


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(
        data_dir,
        conninfo,
        judge={"deadline_s": 3, "concurrency": 8},
        backend={"connections": 16},
        limits={"requests_per_minute": 10_000_000, "concurrency": 1_000_000},
        drain_s=0.2,
        changed_constants={
            "setup.calls.CALLS_MAX": 64,
            "setup.backends.BackendConfig": {"connections_waiting_max": 64},
            "money.holds.refusal_errors.REFUSED_CALLS_PER_MINUTE": 10_000_000,
            "policies.policies.POLICIES_MAX": 1_000_000,
        },
    ) as running:
        yield running


@dataclass(frozen=True)
class Quiet:
    """The results of a quiet tenant's calls."""

    statuses: list[int]
    times_s: list[float]
    bill: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def slowest_s(self) -> float:
        return max(self.times_s)

    @property
    def refusals(self) -> int:
        return sum(status != 200 for status in self.statuses)


async def _quiet_calls(tenant: JudgedGateway, count: int) -> Quiet:
    before = await _settled(tenant)
    times_s, statuses = [], []
    async with tenant.scripted.another_client() as client:
        for _ in range(count):
            started = time.perf_counter()
            message = {"role": "user", "content": f"A quiet word {next(_numbers)}."}
            found = await client.chat(messages=[message])
            statuses.append(found.status_code)
            times_s.append(time.perf_counter() - started)
    return Quiet(statuses, times_s, await _settled(tenant) - before)


async def _settled(tenant: JudgedGateway) -> int:
    """Returns the cost of the tenant's calls so far. Calls of other tenants may be running."""
    return sum(entry.cost for entry in await tenant.scripted.entries())


@pytest.mark.parametrize("name", [_UNDISTURBED, *ATTACKS])
async def test_a_quiet_tenant_is_not_disturbed(
    shared: JudgedGateway, name: str, proof: Proof
) -> None:
    shared.judge.reset()
    shared.model.play(by_words())
    shared.judge.opinion = judge_by_words
    quiet, hostile = await shared.with_tenant(), await shared.with_tenant()
    await quiet.enforce("a secret", direction="request")
    calls = proof.size(quick=5, long=50)
    attack = ATTACKS.get(name)
    async with contextlib.AsyncExitStack() as stack:
        if attack is not None:
            await stack.enter_async_context(attack(hostile, proof.size(quick=1, long=3)))
        seen = await _quiet_calls(quiet, calls)
    proof.row(
        _TABLE,
        attack=name,
        median=f"{seen.median_s * 1000:.0f} ms",
        slowest=f"{seen.slowest_s * 1000:.0f} ms",
        refusals=f"{seen.refusals} of {calls}",
        bill="exact" if seen.bill == calls * COST else f"{seen.bill} instead of {calls * COST}",
    )
    proof.count("quiet calls under attack", calls)
    assert seen.refusals == 0, seen.statuses
    assert seen.bill == calls * COST
    services = shared.scripted.gateway.services
    await eventually(lambda: services.inference.running == 0)
    await eventually(lambda: services.ledger.open_holds == 0)
    await eventually(lambda: shared.model.under_way == 0)
    assert all(backend.health().ready for backend in services.backends.values())
    assert (await quiet.scripted.balance())["held"] == 0


async def test_descriptors_return_to_where_they_were(shared: JudgedGateway, proof: Proof) -> None:
    """Opens many connections, with --prove thousands. Some of them ask for streams and read nothing."""
    shared.model.play(by_words())
    shared.judge.opinion = judge_by_words
    hostile = await shared.with_tenant()
    size = proof.size(quick=2, long=20)
    process = psutil.Process()
    open_before = process.num_fds()
    for name in ("idles", "reads nothing", "comes and goes"):
        async with ATTACKS[name](hostile, size):
            pass
    services = shared.scripted.gateway.services
    await eventually(lambda: services.inference.running == 0)
    # Idle connections to the model server stay for a few seconds.
    await eventually(lambda: process.num_fds() <= open_before + 4)
    assert services.ledger.open_holds == 0
    proof.count("hostile connections", 100 * size)
