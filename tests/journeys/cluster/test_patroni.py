"""Tests gateways on a real HA cluster: three PostgreSQL servers, Patroni and etcd.

The settings of Patroni and the commands are those of docs/database.md.
"""

import asyncio
import os
import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from bench.ports import free_port

from tests.journeys.clients.debian import debian_program_or_skip
from tests.support.data_folders import data_folder
from tests.support.documents import blocks_below
from tests.support.failovers import Callers, settled, two_gateways
from tests.support.patroni import Node, PatroniCluster, running_patroni
from tests.support.program import Program, Serving
from tests.support.proof import Proof
from tests.support.scripted_gateway import ScriptedGateway
from tollkeeper.database.migrations import migrate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parents[3]
_DOCUMENT = _ROOT / "docs" / "database.md"
_URL, _EDITED = (block.text for block in blocks_below(_DOCUMENT, "Patroni"))
_SETTINGS: dict[str, Any] = yaml.safe_load(_EDITED)
_AFTER_A_ROLLBACK = blocks_below(_DOCUMENT, "Two servers that accept writes")[-1].commands
# A failover takes up to Patroni's `ttl`, and gateways and standbys follow a little later.
_WITHIN_S = 90.0
_NO_DIFFERENCE = {"ok": True, "differences": []}


@dataclass
class Drill:
    cluster: PatroniCluster
    program: Program
    served: list[tuple[Serving, ScriptedGateway]]
    callers: Callers

    async def readiness(self) -> list[dict[str, Any]]:
        async with httpx2.AsyncClient(timeout=30) as client:
            asked = [client.get(f"{serving.operator}/readyz") for serving, _ in self.served]
            return [answer.json() for answer in await asyncio.gather(*asked)]

    async def until_refused(self, node: Node) -> None:
        """Waits until every gateway says that it does not use the node."""
        said: list[dict[str, Any]] = []
        async with asyncio.timeout(_WITHIN_S):
            while not said or not all(
                one["status"] == "not ready"
                and f"{node.server.address} accepts writes and is not the newest" in one["database"]
                for one in said
            ):
                said = await self.readiness()
                await asyncio.sleep(0.2)

    async def acknowledged_in(self, seconds: float) -> int:
        before = len(self.callers.acknowledged)
        await asyncio.sleep(seconds)
        return len(self.callers.acknowledged) - before

    async def do_as_documented(self) -> int:
        """Runs the commands for a rollback with the logs of these gateways. Returns how many calls were
        booked."""
        logs = [str(serving.log) for serving, _ in self.served]
        booked = 0
        for command in _AFTER_A_ROLLBACK:
            words = [word for word in shlex.split(command)[1:] if not word.endswith(".log")]
            files = logs if "compare-log" in words else []
            done = await asyncio.to_thread(self.program.json, *words, *files)
            booked += done.get("booked", 0)
        return booked


@contextmanager
def _haproxy(cluster: PatroniCluster) -> Iterator[str]:
    """Runs HAProxy with our file in front of the cluster. Yields the URL that names only its port."""
    program = debian_program_or_skip("haproxy", "usr/sbin/haproxy")
    text = (_ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
    (before, _, rest), port = text.partition("\nfrontend "), free_port()
    text = f"{before}\nlisten postgres{rest.partition('listen postgres')[2]}"
    text = re.sub(r"^  (user|group|maxconn) .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("bind 127.0.0.1:5432", f"bind 127.0.0.1:{port}")
    for number, node in enumerate(cluster.nodes, 1):
        rest_port = node.rest.rpartition(":")[2]
        here = f"{node.server.address} check port {rest_port}"
        text = text.replace(f"10.0.0.2{number}:5432", here)
    file = cluster.folder / "haproxy.cfg"
    file.write_text(text)
    process = psutil.Popen(
        [str(program.program), "-db", "-f", str(file)], env={**os.environ, **program.environment}
    )
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(_WITHIN_S)


@contextmanager
def _all_nodes(cluster: PatroniCluster) -> Iterator[str]:
    """Yields a URL that names all nodes, as the page says."""
    assert _URL.count(",") + 1 == len(cluster.nodes)
    yield cluster.url


@asynccontextmanager
async def running_drill(
    compiled: dict[str, str],
    address: Callable[[PatroniCluster], AbstractContextManager[str]] = _all_nodes,
    **settings: Any,
) -> AsyncIterator[Drill]:
    with (
        data_folder() as folder,
        running_patroni(folder, **settings) as cluster,
        address(cluster) as url,
    ):
        await asyncio.to_thread(migrate, cluster.leader.server.conninfo)
        async with two_gateways(folder, compiled, url) as (installed, served):
            callers = Callers([gateway for _, gateway in served])
            calling = asyncio.create_task(callers.run())
            program = replace(installed.program, warm=True)
            try:
                await callers.until_acknowledged(40)
                yield Drill(cluster, program, served, callers)
            finally:
                callers.stop()
                await calling


async def _kill_leader(cluster: PatroniCluster) -> Callable[[], None]:
    leader = cluster.leader
    await asyncio.to_thread(leader.kill)
    return leader.start


async def _freeze_leader(cluster: PatroniCluster) -> Callable[[], None]:
    leader = cluster.leader
    leader.freeze()
    return lambda: _reset(leader)


async def _freeze_patroni(cluster: PatroniCluster) -> Callable[[], None]:
    """PostgreSQL of the old leader goes on, so two servers accept writes until the machine is reset."""
    leader = cluster.leader
    leader.freeze_patroni()
    async with asyncio.timeout(_WITHIN_S):
        while await asyncio.to_thread(cluster.leaders) in ([], [leader]):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return lambda: _reset(leader)


def _reset(node: Node) -> None:
    """Does what a watchdog does, but later: the other node is the leader already."""
    node.kill()
    node.start()


async def _switch_over(cluster: PatroniCluster) -> Callable[[], None]:
    standby = cluster.synchronous_standby()
    assert standby is not None
    await asyncio.to_thread(cluster.switch_over, standby)
    return lambda: None


async def _freeze_etcd(cluster: PatroniCluster) -> Callable[[], None]:
    """The leader gives up, because it cannot renew its lock."""
    cluster.freeze_etcd()
    async with asyncio.timeout(_WITHIN_S):
        while await asyncio.to_thread(cluster.leaders):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    cluster.thaw_etcd()
    return lambda: None


_FAULTS: dict[str, Callable[[PatroniCluster], Awaitable[Callable[[], None]]]] = {
    "leader killed": _kill_leader,
    "leader frozen, later reset": _freeze_leader,
    "Patroni of the leader frozen, later reset": _freeze_patroni,
    "switchover": _switch_over,
    "etcd frozen until the leader gives up": _freeze_etcd,
}


def _show(proof: Proof, fault: str, found: str) -> None:
    print(f"{fault}: {found}", flush=True)  # noqa: T201 - the rows of docs/reliability.md
    proof.row("faults of a Patroni cluster", fault=fault, found=found)


async def test_a_strict_cluster_loses_no_call(compiled: dict[str, str], proof: Proof) -> None:
    assert _SETTINGS == {"synchronous_mode": True, "synchronous_mode_strict": True}
    async with running_drill(compiled, **_SETTINGS) as drill:
        cluster, callers = drill.cluster, drill.callers
        await asyncio.to_thread(cluster.until_replicated)
        for fault, cause in _FAULTS.items():
            began_at, before = time.monotonic(), len(callers.acknowledged)
            recover = await cause(cluster)
            await callers.until_acknowledged(30, within_s=_WITHIN_S)
            seconds = time.monotonic() - began_at
            acknowledged = len(callers.acknowledged) - before
            await asyncio.to_thread(recover)
            # The node that comes back becomes a standby; until then it may accept writes.
            await asyncio.to_thread(cluster.until_replicated)
            await callers.until_acknowledged(30, within_s=_WITHIN_S)
            found = f"{seconds:.1f} s, {acknowledged} calls acknowledged meanwhile"
            _show(proof, fault, found)
        standbys = [node for node in cluster.nodes if node is not cluster.leader]
        await asyncio.gather(*(asyncio.to_thread(standby.stop) for standby in standbys))
        await asyncio.sleep(1)
        assert await drill.acknowledged_in(10) == 0
        for standby in standbys:
            standby.start()
        await callers.until_acknowledged(30, within_s=_WITHIN_S)
        callers.stop()
        await asyncio.sleep(1)
        leader = cluster.leader.server
        assert set(callers.acknowledged) - settled(leader) == set()
        await asyncio.to_thread(drill.program.json, "ledger", "recover")
        assert await asyncio.to_thread(drill.program.json, "ledger", "verify") == _NO_DIFFERENCE
        proof.count("calls acknowledged by a Patroni cluster, none lost", len(callers.acknowledged))


async def test_haproxy_follows_the_leader(compiled: dict[str, str], proof: Proof) -> None:
    async with running_drill(compiled, _haproxy, **_SETTINGS) as drill:
        cluster, callers = drill.cluster, drill.callers
        await asyncio.to_thread(cluster.until_replicated)
        old, began_at = cluster.leader, time.monotonic()
        await asyncio.to_thread(old.kill)
        await callers.until_acknowledged(30, within_s=_WITHIN_S)
        seconds = time.monotonic() - began_at
        _show(proof, "leader killed, behind HAProxy", f"{seconds:.1f} s")
        # The old leader comes back as a standby, and gets no connection.
        old.start()
        await asyncio.to_thread(cluster.until_replicated)
        await callers.until_acknowledged(100, within_s=_WITHIN_S)
        callers.stop()
        await asyncio.sleep(1)
        assert set(callers.acknowledged) - settled(cluster.leader.server) == set()


async def test_calls_of_a_rolled_back_cluster_are_booked(
    compiled: dict[str, str], proof: Proof
) -> None:
    """Without the strict mode, a leader without standbys goes on alone, and a forced failover loses its calls.
    After a second forced failover, to the first leader, both servers have the same timeline number."""
    async with running_drill(compiled, synchronous_mode=True) as drill:
        cluster, callers = drill.cluster, drill.callers
        first = cluster.leader
        second, third = (node for node in cluster.nodes if node is not first)
        for node in (second, third):
            await asyncio.to_thread(node.stop)
        await callers.until_acknowledged(200, within_s=_WITHIN_S)
        await asyncio.to_thread(first.kill)
        await _fail_over(drill, second)
        await callers.until_acknowledged(100, within_s=_WITHIN_S)
        lost = set(callers.acknowledged) - settled(second.server)
        assert lost
        _show(
            proof, "forced failover after a leader without standbys", f"{len(lost)} calls are lost"
        )

        await asyncio.to_thread(second.kill)
        await _fail_over(drill, first)
        await drill.until_refused(first)
        assert await drill.acknowledged_in(3) == 0
        rewound = set(callers.acknowledged) - settled(first.server)
        booked = await drill.do_as_documented()
        assert booked >= len(rewound) > 0
        found = f"the gateways refuse it; {booked} calls are booked after `accept`"
        _show(proof, "forced failover back, to the same timeline number", found)
        await callers.until_acknowledged(100, within_s=_WITHIN_S)
        callers.stop()
        await asyncio.sleep(1)
        assert set(callers.acknowledged) - settled(first.server) == set()
        assert await asyncio.to_thread(drill.program.json, "ledger", "verify") == _NO_DIFFERENCE


async def _fail_over(drill: Drill, candidate: Node) -> None:
    """Starts the node and makes it the leader, although Patroni does not choose it by itself."""
    candidate.start()
    async with asyncio.timeout(_WITHIN_S):
        while not await asyncio.to_thread(candidate.is_leader):
            # Patroni refuses until the node runs.
            await asyncio.to_thread(drill.cluster.force, candidate)
            await asyncio.sleep(1)
