"""Tests three gateways on one PostgreSQL server. The gateways are killed, frozen, cut off and restarted,
and so is the database: no acknowledged call is lost, no money is spent twice, and no limit is exceeded."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import LiteralString
from uuid import UUID

import httpx2
import pytest

from tests.support.cluster import LEASE_S, Cluster, ClusterGateway, running_cluster
from tests.support.gateway import assert_error
from tests.support.paused_answer import PausedAnswer
from tests.support.proof import Proof
from tests.support.scripted_gateway import COST, ScriptedGateway, chat_body, read_stream
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS
from tollkeeper.money.caps.rule import CapPeriod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_TABLE = "three gateways on one PostgreSQL"
_CALLS_BETWEEN = 30
_SILENT_S = 3 * LEASE_S
# The number of calls that a cap or a credit covers.
_CAPPED_CALLS = 60

Fault = Callable[[Cluster, ClusterGateway, ScriptedGateway], Awaitable[None]]


# Faults. Each function returns when the gateway or the database serves again.


async def killed(cluster: Cluster, victim: ClusterGateway, _: ScriptedGateway) -> None:
    leases = await cluster.processes_of(victim)
    await victim.kill()
    await cluster.until(_SWEPT, leases)
    await victim.start()


async def restarted(_cluster: Cluster, victim: ClusterGateway, _: ScriptedGateway) -> None:
    await victim.stop()
    await victim.start()


async def frozen(cluster: Cluster, victim: ClusterGateway, main: ScriptedGateway) -> None:
    """Freezes a gateway beyond its lease with a call in flight, which another gateway marks as unsettled.
    The gateway is thawed after its model has answered: the call is settled once, at its exact cost."""
    async with AsyncExitStack() as stack:
        cluster.model.paused = PausedAnswer()
        response = await stack.enter_async_context(
            victim.client.stream(
                "POST",
                "/v1/chat/completions",
                json=chat_body(max_tokens=16, stream=True, user="paused"),
                headers=main.tenant.as_customer,
            )
        )
        assert response.status_code == 200, await response.aread()
        request_id = UUID(response.headers["x-request-id"])
        victim.freeze()
        cluster.model.paused.may_end.set()
        await cluster.until(_MARKED, request_id)
        victim.thaw()
        text = "".join([piece async for piece in response.aiter_text()])
    assert read_stream(text).done
    (found,) = await cluster.sql(_CALL, request_id)
    assert found == ("settled", COST, 1)


async def cut_from_the_database(
    cluster: Cluster, victim: ClusterGateway, main: ScriptedGateway
) -> None:
    """Cuts a gateway from the database: it answers calls with a 503, and its lease ends."""
    leases = await cluster.processes_of(victim)
    victim.suffers()
    victim.machine.cut("database")
    try:
        refused = await victim.chat_once(main.tenant.project_key)
        assert_error(refused, 503, "service_unavailable")
        await cluster.until(_SWEPT, leases)
    finally:
        victim.machine.join("database")
    assert (await victim.chat(main.tenant)).status_code == 200
    victim.recovers()


async def cut_from_its_callers(
    _cluster: Cluster, victim: ClusterGateway, main: ScriptedGateway
) -> None:
    victim.suffers()
    victim.machine.cut("callers")
    try:
        await asyncio.sleep(_SILENT_S)
    finally:
        victim.machine.join("callers")
    assert (await victim.chat(main.tenant)).status_code == 200
    victim.recovers()


async def database_restarted(cluster: Cluster, _: ClusterGateway, __: ScriptedGateway) -> None:
    cluster.balancer.excuse_slowness()
    await asyncio.to_thread(cluster.postgres.stop, "fast")
    await cluster.start_database()
    cluster.balancer.excuse_slowness(longer_s=_SILENT_S)


async def database_killed(cluster: Cluster, _: ClusterGateway, __: ScriptedGateway) -> None:
    cluster.balancer.excuse_slowness()
    cluster.kill_database()
    await cluster.start_database()
    cluster.balancer.excuse_slowness(longer_s=_SILENT_S)


FAULTS: tuple[Fault, ...] = (
    killed,
    frozen,
    cut_from_the_database,
    cut_from_its_callers,
    restarted,
    database_restarted,
    database_killed,
)


# Load.


@dataclass
class Load:
    """Clients of the balancer that make one call after the other until they are stopped."""

    cluster: Cluster
    main: ScriptedGateway
    capped: ScriptedGateway
    poor: ScriptedGateway
    acknowledged: dict[str, ScriptedGateway] = field(default_factory=dict)
    stopping: bool = False
    over_cap: list[int] = field(default_factory=list)
    _calling: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._calling = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Lets running calls end."""
        self.stopping = True
        if self._calling is not None:
            await self._calling

    async def _run(self) -> None:
        client = httpx2.AsyncClient(
            transport=self.cluster.balancer, base_url="http://gateways", timeout=120
        )
        callers = [self.main] * 6 + [self.capped] * 2 + [self.poor] * 2
        await asyncio.gather(*(self._call(client, tenant) for tenant in callers), self._sample())

    async def _call(self, client: httpx2.AsyncClient, caller: ScriptedGateway) -> None:
        number = 0
        while not self.stopping:
            number += 1
            answer = await client.post(
                "/v1/chat/completions",
                json=chat_body(max_tokens=16, stream=number % 2 == 0),
                headers=caller.tenant.as_customer,
            )
            if answer.status_code == 200:
                assert answer.headers["x-request-id"] not in self.acknowledged
                self.acknowledged[answer.headers["x-request-id"]] = caller
                await asyncio.sleep(0.02)
            else:
                # The credit or cap is used up, at least until a call in flight releases its hold.
                assert caller is not self.main, answer.text
                assert_error(answer, 402, "payment_required")
                await asyncio.sleep(0.5)

    async def _sample(self) -> None:
        """Samples the accounts, and records samples in which a tenant has exceeded its cap or credit."""
        while not self.stopping:
            for tenant in (self.capped, self.poor):
                found = await self.cluster.sql(_ROOM, tenant.tenant.organization_id)
                self.over_cap += [row[0] for row in found if row[0] < 0]
            await asyncio.sleep(0.2)

    async def goes_on(self, calls: int = _CALLS_BETWEEN) -> None:
        target = len(self.acknowledged) + calls
        async with asyncio.timeout(60):
            while len(self.acknowledged) < target:
                assert self._calling is not None
                if self._calling.done():
                    await self._calling
                await asyncio.sleep(0.02)


# Changes that every gateway knows at its next admission.


async def changes_are_exact(cluster: Cluster) -> int:
    """Checks that changes apply to the next call on every gateway. Returns the number of compared calls."""
    await cluster.operator_is_connected()
    tenant = await cluster.tenant()
    services, project = cluster.services, tenant.tenant.project_id
    organization = tenant.tenant.organization_id

    async def everywhere(key: str = tenant.tenant.project_key) -> list[int]:
        answers = (gateway.chat(key) for gateway in cluster.gateways)
        return [answer.status_code for answer in await asyncio.gather(*answers)]

    count = len(cluster.gateways)
    key, value = await services.project_keys.project_key_create_by_operator(
        project, "short-lived", PROJECT_KEY_PERMISSIONS, None
    )
    assert await everywhere(value) == [200] * count
    await services.project_keys.project_key_revoke(key.id)
    assert await everywhere(value) == [401] * count

    await services.caps.cap_set(organization, 1, CapPeriod.TOTAL)
    assert await everywhere() == [402] * count
    await services.caps.cap_clear(organization)
    assert await everywhere() == [200] * count

    await services.projects.project_allow_models(project, ["other/*"])
    assert await everywhere() == [403] * count
    await services.projects.project_allow_models(project, [])
    assert await everywhere() == [200] * count

    created = await tenant.gateway.make_policy(tenant.tenant, mode="enforcing", direction="request")
    policy = await services.policies.policy_show(organization, created["id"])
    policy = await services.policies.policy_publish(organization, policy.id, policy.revision)
    assert await everywhere() == [403] * count
    await services.policies.policy_pause(organization, policy.id, policy.revision)
    assert await everywhere() == [200] * count

    began = time.monotonic()
    await services.accounts.limit_set(project, requests_per_minute=3)
    found = [status for _ in range(3) for status in await everywhere()]
    # The bucket has three tokens, and gets one more every twenty seconds.
    allowed = 3 + (time.monotonic() - began) / 20
    assert found.count(200) <= allowed
    assert found.count(200) + found.count(429) == 3 * count
    return 11 * count


# The ledger.


async def check_books(cluster: Cluster, load: Load) -> dict[str, int]:
    await cluster.until("SELECT WHERE NOT EXISTS (" + _HELD + ")")
    statuses: dict[str, int] = {}
    settled: set[str] = set()
    for request_id, kind, cost, resolutions in await cluster.sql(_CALLS):
        statuses[kind] = statuses.get(kind, 0) + 1
        assert resolutions <= 1
        if kind == "settled":
            assert cost == COST
            settled.add(str(request_id))
    assert set(load.acknowledged) <= settled
    # Every charged call has reached the model, and every call that reached it is in the ledger.
    assert statuses["settled"] <= cluster.model.reached
    assert cluster.model.reached <= statuses["settled"] + statuses.get("unsettled", 0)
    assert load.over_cap == []
    for tenant in (load.capped, load.poor):
        ((room,),) = await cluster.sql(_ROOM, tenant.tenant.organization_id)
        assert room >= 0
    verified = await asyncio.to_thread(cluster.installed.program.json, "ledger", "verify")
    assert verified == {"ok": True, "differences": []}
    assert cluster.balancer.attempts.strange == []
    return statuses


async def test_no_fault_of_one_machine_loses_or_doubles_money(
    compiled: dict[str, str], proof: Proof
) -> None:
    cycles = proof.size(1, 5)
    async with running_cluster(compiled) as cluster, AsyncExitStack() as ends:
        room = _CAPPED_CALLS * COST
        load = Load(
            cluster,
            main=await cluster.tenant(),
            capped=await cluster.tenant(),
            poor=await cluster.tenant(credit=room),
        )
        organization = load.capped.tenant.organization_id
        await cluster.services.caps.cap_set(organization, room, CapPeriod.TOTAL)
        load.start()
        ends.push_async_callback(load.stop)
        await load.goes_on()
        compared = await changes_are_exact(cluster)
        for number in range(cycles * len(FAULTS)):
            cycle, place = divmod(number, len(FAULTS))
            victim = cluster.gateways[(cycle + place) % len(cluster.gateways)]
            await _go_through(FAULTS[place], cluster, victim, load, proof)
        compared += await changes_are_exact(cluster)
        await load.stop()
        statuses = await check_books(cluster, load)
        _count(proof, cluster, load, statuses, compared)


async def _go_through(
    fault: Fault, cluster: Cluster, victim: ClusterGateway, load: Load, proof: Proof
) -> None:
    began, before = time.monotonic(), len(load.acknowledged)
    repeated = cluster.balancer.attempts.repeated
    await fault(cluster, victim, load.main)
    await load.goes_on()
    proof.row(
        _TABLE,
        fault=fault.__name__.replace("_", " "),
        seconds=f"{time.monotonic() - began:.1f}",
        acknowledged=str(len(load.acknowledged) - before),
        repeated=str(cluster.balancer.attempts.repeated - repeated),
    )


def _count(
    proof: Proof, cluster: Cluster, load: Load, statuses: dict[str, int], compared: int
) -> None:
    for what, number in (
        (f"calls acknowledged by three gateways ({cluster.site.kind})", len(load.acknowledged)),
        ("calls acknowledged and not settled exactly once at their exact cost", 0),
        (
            "calls of dead, frozen or cut gateways that stayed unsettled",
            statuses.get("unsettled", 0),
        ),
        ("attempts that were repeated elsewhere", cluster.balancer.attempts.repeated),
        ("admissions right after a change, the same on three gateways", compared),
        ("samples of a cap or a credit that was exceeded", len(load.over_cap)),
    ):
        proof.count(what, number)


_SWEPT: LiteralString = "SELECT WHERE NOT EXISTS (SELECT FROM processes WHERE id = ANY(%s))"
_MARKED: LiteralString = "SELECT reason FROM unsettled_marks WHERE reservation_id = %s"
_COST: LiteralString = """
    coalesce(d.prompt + d.completion + d.input_cache_read + d.image + d.request
        + d.input_cache_write + d.input_audio + d.output_audio + d.output_image + d.web_search
       , 0)
"""
_CALLS: LiteralString = (
    """
    SELECT r.id, coalesce(d.kind, CASE WHEN m.reservation_id IS NULL THEN 'held' ELSE 'unsettled' END),
    """
    + _COST
    + """,
        (SELECT count(*) FROM resolutions o
         WHERE o.organization_id = r.organization_id AND o.reservation_id = r.id)
    FROM reservations r
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN unsettled_marks m
      ON m.organization_id = r.organization_id AND m.reservation_id = r.id
    """
)
_CALL: LiteralString = (
    "SELECT kind, cost::bigint, resolutions FROM (" + _CALLS + ")"
    " AS calls (id, kind, cost, resolutions) WHERE id = %s"
)
_HELD: LiteralString = (
    "SELECT FROM (" + _CALLS + ") AS calls (id, kind, cost, resolutions) WHERE kind = 'held'"
)
# If the database crashes, lost holds become overage, which may exceed a cap, as documented.
_ROOM: LiteralString = """
    SELECT coalesce(cap, granted) - (held + unsettled + settled - overage) FROM accounts
    WHERE organization_id = %s
"""
