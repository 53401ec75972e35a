"""Tests an old primary that comes back after a failover: all gateways use the same, newest server.

Two gateways on separate machines (each has its own data folder) know both servers. A step stops, pauses,
starts or promotes a server, or restarts a gateway, while clients call both gateways. Replication is
synchronous, as described in docs/scaling.md.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from bench.ports import free_port

from tests.support.data_folders import data_folder
from tests.support.gateway import Gateway, Tenant
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, eventually, stop
from tests.support.proof import Proof
from tests.support.scripted_gateway import chat_body
from tests.support.upstream import Upstream, chat
from tollkeeper.database.migrations import migrate
from tollkeeper.money.unsettled.recovery import HEARTBEATS_PER_LEASE

_LEASE_S = 6
_HEARTBEAT_S = _LEASE_S / HEARTBEATS_PER_LEASE
# How long the test runs after a step before the next step, in seconds.
_OBSERVED_S = _HEARTBEAT_S + 2
# Tolerance for heartbeats that start late on a busy machine, in seconds.
_SLACK_S = 1.0
# Clients of each gateway that only call, and clients that also compare calls with /readyz.
_CALLERS = 1
_SAMPLERS = 2
# Time limit for each wait, in seconds.
_WITHIN_S = 40
# The share of samples in which /readyz has to agree with the call.
_READY_MATCHES = 0.99

_RESTART = "restart gateway"
_REPLACE = "replace gateway"  # restarts it as a new machine, which has no files
_FAILOVERS = (
    ("stop primary", "promote standby", "start primary"),
    ("pause primary", "promote standby", "continue primary"),
    ("promote standby",),
    ("promote standby", "stop primary", "start primary"),
    ("promote standby", "pause primary", "continue primary"),
    ("stop primary", "start primary", "promote standby"),
    ("pause primary", "continue primary", "promote standby"),
)
_HOSTS = (("primary", "standby"), ("standby", "primary"))


def _orders(failover: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields orders in which a gateway restarts in each phase of the failover. In the last two orders, the
    promoted server is down for a while, and only the old primary answers."""
    for position in range(len(failover) + 1):
        yield *failover[:position], _RESTART, *failover[position:]
    yield *failover, _REPLACE, "stop standby", _RESTART, "start standby"
    yield *failover, "stop standby", _REPLACE, "start standby"


@dataclass
class Pair:
    """A primary and its synchronous standby."""

    primary: PostgresServer
    standby: PostgresServer
    promoted: bool = False

    @property
    def newest(self) -> PostgresServer:
        return self.standby if self.promoted else self.primary

    def url(self, hosts: tuple[str, str]) -> str:
        servers = {"primary": self.primary, "standby": self.standby}
        addresses = ",".join(servers[name].address for name in hosts)
        return f"postgresql://postgres@{addresses}/postgres"

    def promote_standby(self) -> None:
        self.standby.promote()
        self.promoted = True


@contextmanager
def running_pair(folder: Path) -> Iterator[Pair]:
    primary = PostgresServer(folder / "primary")
    primary.initialise()
    primary.start()
    migrate(primary.conninfo)
    standby = primary.standby(folder / "standby", "standby")
    primary.configure(synchronous_standby_names="standby")
    primary.reload()
    query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    eventually(lambda: primary.query(query) == [(1,)])
    try:
        yield Pair(primary, standby)
    finally:
        for server in (standby, primary):
            server.stop("immediate")


@dataclass
class Sample:
    """The states in /readyz before and after a call, and whether the call succeeded."""

    began_at: float
    ended_at: float
    before: bool
    after: bool
    succeeded: bool


@dataclass
class Machine:
    """A gateway with its own data folder. `start` also starts it again whenever it ends."""

    program: Program
    data_dir: Path
    tenant: Tenant
    process: psutil.Popen | None = None
    keeper: asyncio.Task[None] | None = None
    acknowledged: dict[str, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.public, self.operator = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.program = self.program.with_environment(
            TOLLKEEPER_DATABASE__DATA_DIR=str(self.data_dir),
            TOLLKEEPER_SERVER__PORT=self.public.rpartition(":")[2],
            TOLLKEEPER_OPERATOR__PORT=self.operator.rpartition(":")[2],
        )
        self.log = self.program.folder / f"serve-{self.data_dir.name}.log"

    def start(self) -> None:
        self.keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            with self.log.open("ab") as errors:
                self.process = psutil.Popen(
                    self.program.line("serve", "--json"),
                    cwd=self.program.folder,
                    env=self.program.process_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            while self.process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            self.process.stdout.close()

    async def stop(self) -> None:
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.gather(self.keeper, return_exceptions=True)
        if self.process is not None:
            await asyncio.to_thread(stop, self.process)

    async def restart(self, *, keeps_files: bool) -> None:
        await self.stop()
        if not keeps_files:
            shutil.rmtree(self.data_dir)
        self.start()

    async def ready(self) -> dict[str, Any] | None:
        """Returns the body of /readyz, or None if no gateway answers."""
        async with httpx2.AsyncClient(timeout=30) as client:
            try:
                found = await client.get(f"{self.operator}/readyz")
            except httpx2.TransportError:
                return None
        return dict(found.json())

    async def alerts(self) -> list[dict[str, Any]]:
        async with httpx2.AsyncClient(timeout=30) as client:
            return list((await client.get(f"{self.operator}/alerts")).json()["data"])

    async def until_told(self, status: str, old: PostgresServer) -> None:
        """Waits until /readyz has this status, and both /readyz and an alert name the old primary."""
        said: dict[str, Any] | None = None
        alerts: list[dict[str, Any]] = []
        deadline = time.monotonic() + _WITHIN_S
        while not (
            said is not None
            and said["status"] == status
            and f"{old.address} accepts writes and is not the newest" in said["database"]
            and [alert["kind"] for alert in alerts] == ["old_database_server"]
            and old.address in alerts[0]["detail"]
        ):
            assert time.monotonic() < deadline, (said, alerts)
            await asyncio.sleep(0.2)
            if (said := await self.ready()) is not None:
                alerts = await self.alerts()

    async def call(self, client: httpx2.AsyncClient) -> int | None:
        """Makes a call and returns its status, or None if no gateway answers."""
        try:
            found = await client.post(
                f"{self.public}/v1/chat/completions",
                json=chat_body(max_tokens=1),
                headers=self.tenant.as_customer,
            )
        except httpx2.TransportError:
            return None
        if found.status_code == 200:
            self.acknowledged[found.headers["x-request-id"]] = time.time()
        return found.status_code

    async def keep_calling(self) -> None:
        async with httpx2.AsyncClient(timeout=60) as client:
            while True:
                await self.call(client)
                await asyncio.sleep(0.05)

    async def keep_sampling(self) -> None:
        async with httpx2.AsyncClient(timeout=60) as client:
            while True:
                began_at = time.time()
                before = await self.ready()
                status = await self.call(client)
                after = await self.ready()
                if before is not None and status is not None and after is not None:
                    states = before["status"] == "ready", after["status"] == "ready"
                    self.samples.append(Sample(began_at, time.time(), *states, status == 200))
                await asyncio.sleep(0.1)

    async def until_acknowledged(self) -> None:
        count = len(self.acknowledged) + 5
        deadline = time.monotonic() + _WITHIN_S
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, (await self.ready(), self.log.read_text()[-4000:])
            await asyncio.sleep(0.05)


@dataclass
class Drill:
    pair: Pair
    machines: list[Machine]
    # The name of each step, and when it began and ended.
    steps: list[tuple[str, float, float]] = field(default_factory=list)

    async def take(self, step: str) -> None:
        began_at = time.time()
        pair = self.pair
        servers: dict[str, Callable[[], None]] = {
            "stop primary": lambda: pair.primary.stop("immediate"),
            "start primary": pair.primary.start,
            "pause primary": pair.primary.pause,
            "continue primary": pair.primary.resume,
            "promote standby": pair.promote_standby,
            "stop standby": lambda: pair.standby.stop("immediate"),
            "start standby": pair.standby.start,
        }
        if step in servers:
            await asyncio.to_thread(servers[step])
        else:
            await self.machines[0].restart(keeps_files=step == _RESTART)
        self.steps.append((step, began_at, time.time()))
        if step == "stop standby":
            await self.machines[1].until_told("not ready", pair.primary)
        await asyncio.sleep(_OBSERVED_S)

    async def run(self, order: tuple[str, ...]) -> None:
        tasks = [
            asyncio.create_task(work)
            for machine in self.machines
            for work in (
                *(machine.keep_sampling() for _ in range(_SAMPLERS)),
                *(machine.keep_calling() for _ in range(_CALLERS)),
            )
        ]
        try:
            for machine in self.machines:
                await machine.until_acknowledged()
            for step in order:
                await self.take(step)
            for machine in self.machines:
                await machine.until_acknowledged()
                await machine.until_told("ready", self.pair.primary)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            assert task.cancelled() or task.exception() is None

    def assert_one_server_was_written_to(self) -> None:
        """Checks that writes to the old primary end at most a heartbeat after both servers accept writes:
        after the promotion, or after the old primary comes back."""
        (promoted_at,) = (end for step, _, end in self.steps if step == "promote standby")
        returns = ("start primary", "continue primary")
        returned_at = [end for step, _, end in self.steps if step in returns]
        both_at = max([promoted_at, *(at for at in returned_at if at > promoted_at)])
        held = "SELECT id::text, extract(epoch FROM held_at)::float8 FROM reservations"
        kept = {row[0] for row in self.pair.newest.query(held)}
        late = [
            float(str(held_at)) - both_at
            for reservation, held_at in self.pair.primary.query(held)
            if reservation not in kept
        ]
        assert max(late, default=0) <= _HEARTBEAT_S + _SLACK_S, sorted(late)

    def assert_no_acknowledged_call_is_lost(self) -> int:
        settled = {
            str(row[0])
            for row in self.pair.newest.query(
                "SELECT reservation_id FROM resolutions WHERE kind = 'settled'"
            )
        }
        acknowledged = [
            request_id for machine in self.machines for request_id in machine.acknowledged
        ]
        assert set(acknowledged) - settled == set()
        return len(acknowledged)

    def matched_readiness(self) -> tuple[int, int]:
        """Returns how many samples agree, and how many there are. Ignores samples during a step and one
        heartbeat after it, and samples whose two answers of /readyz differ."""
        steady = [
            sample
            for machine in self.machines
            for sample in machine.samples
            if sample.before == sample.after
            and not any(
                began_at < sample.ended_at and sample.began_at < ended_at + _HEARTBEAT_S
                for _, began_at, ended_at in self.steps
            )
        ]
        return sum(sample.before == sample.succeeded for sample in steady), len(steady)


@asynccontextmanager
async def running_drill(
    folder: Path, compiled: dict[str, str], hosts: tuple[str, str] = _HOSTS[0]
) -> AsyncIterator[tuple[InstalledProgram, Drill]]:
    with running_pair(folder) as pair:
        async with (
            Upstream(chat()) as upstream,
            installed_program(
                folder,
                folder,
                pair.url(hosts),
                upstream,
                compiled,
                changed_constants={
                    "database.processes.LEASE_S": _LEASE_S,
                    "setup.services.Database": {"pool_timeout_s": 2},
                },
            ) as installed,
            AsyncExitStack() as stack,
        ):
            async with httpx2.AsyncClient() as client:
                gateway = Gateway("", installed.services, client)
                tenant = await gateway.make_tenant()
            await installed.services.accounts.credit_grant(tenant.organization_id, 10**13, "test")
            machines = [
                Machine(installed.program, folder / name, tenant) for name in ("first", "second")
            ]
            for machine in machines:
                machine.start()
                stack.push_async_callback(machine.stop)
            yield installed, Drill(pair, machines)


async def _try_order(
    order: tuple[str, ...], hosts: tuple[str, str], compiled: dict[str, str], proof: Proof
) -> tuple[int, int]:
    with data_folder() as folder:
        async with running_drill(folder, compiled, hosts) as (installed, drill):
            await drill.run(order)
            await asyncio.gather(*(machine.stop() for machine in drill.machines))
            drill.assert_one_server_was_written_to()
            acknowledged = drill.assert_no_acknowledged_call_is_lost()
            program = replace(installed.program, warm=True)
            await asyncio.to_thread(program.json, "ledger", "recover")
            assert (await asyncio.to_thread(program.json, "ledger", "verify"))["ok"]
    matched, samples = drill.matched_readiness()
    shown = ", ".join(order)
    found = f"{acknowledged} calls, /readyz agreed in {matched} of {samples} samples"
    print(f"{', '.join(hosts)}: {shown}: {found}")  # noqa: T201 - the orders that were tried
    proof.row("orders of failover", hosts=", ".join(hosts), steps=shown, found=found)
    proof.count("orders of failover")
    proof.count("calls acknowledged around failovers", acknowledged)
    proof.count("samples of /readyz", samples)
    proof.count("of them agreed with calls", matched)
    assert matched >= _READY_MATCHES * samples, (shown, matched, samples)
    return matched, samples


@pytest.mark.slow
async def test_an_old_primary_that_returns_is_not_used(
    compiled: dict[str, str], proof: Proof
) -> None:
    order = (*_FAILOVERS[0], _RESTART, "stop standby", "start standby")
    await _try_order(order, _HOSTS[0], compiled, proof)


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("hosts", _HOSTS, ids=lambda hosts: f"{hosts[0]} first")
@pytest.mark.parametrize("failover", _FAILOVERS, ids=", ".join)
async def test_gateways_agree_on_one_server(
    failover: tuple[str, ...], hosts: tuple[str, str], compiled: dict[str, str], proof: Proof
) -> None:
    for order in _orders(failover):
        await _try_order(order, hosts, compiled, proof)
