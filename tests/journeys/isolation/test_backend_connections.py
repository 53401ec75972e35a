"""Tests that a client that leaves while its call waits for a backend connection pays nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway, eventually
from tests.support.upstream import Peer, chat
from tollkeeper.core.port import ReplicaReport

# One organization may use all connections but one.
_CONNECTIONS = 8


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        backend={"connections": _CONNECTIONS, "connect_timeout_s": 30, "native_n": False},
    ) as running:
        yield running


def _replica(scripted: ScriptedGateway) -> ReplicaReport:
    (report,) = scripted.gateway.services.backends["scripted"].health().reports
    return report


@asynccontextmanager
async def _every_connection_in_use(shared: ScriptedGateway) -> AsyncIterator[asyncio.Event]:
    """Uses every connection for calls of two other tenants. Setting the yielded event lets them end."""
    may_end = asyncio.Event()

    async def late(peer: Peer) -> None:
        await may_end.wait()
        await chat()(peer)

    shared.upstream.play(late)
    hostile, other = await shared.with_tenant(), await shared.with_tenant()
    async with AsyncExitStack() as calls:
        for stranger in (*[hostile] * (_CONNECTIONS - 1), other):
            caller = await calls.enter_async_context(raw_caller(stranger))
            await caller.ask()
        await eventually(lambda: shared.upstream.under_way == _CONNECTIONS)
        try:
            yield may_end
        finally:
            may_end.set()
        await eventually(lambda: shared.gateway.services.inference.running == 0)
    shared.upstream.play(chat())


async def _assert_is_released(quiet: ScriptedGateway) -> None:
    """Checks the release at once, while the other tenants' calls are in flight."""
    (entry,) = await quiet.entries()
    assert (entry.status, entry.cost) == ("released", 0)


async def _assert_nothing_was_paid(quiet: ScriptedGateway) -> None:
    balance = await quiet.balance()
    assert (balance["held"], balance["unsettled"], balance["settled"]) == (0, 0, 0)


@pytest.mark.parametrize("choices", [1, 2], ids=["one", "fan-out"])
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_who_leaves_while_strangers_have_every_connection_pays_nothing(
    shared: ScriptedGateway, streamed: bool, choices: int
) -> None:
    """The request was not sent. It is not sent after the client has left, and the hold is released."""
    quiet = await shared.with_tenant()
    seen = len(shared.upstream.requests)
    async with _every_connection_in_use(shared), raw_caller(quiet) as caller:
        await caller.ask(stream=streamed, n=choices)
        await eventually(lambda: _replica(shared).waiting == choices)
        caller.leave(abruptly=False)
        await eventually(lambda: shared.gateway.services.inference.running == _CONNECTIONS)
        await _assert_is_released(quiet)
        assert _replica(shared).waiting == 0
    await _assert_nothing_was_paid(quiet)
    assert len(shared.upstream.requests) == seen + _CONNECTIONS


async def test_a_connection_that_is_free_as_the_caller_leaves_is_not_used(
    shared: ScriptedGateway,
) -> None:
    """The call gets a connection and loses its client in the same turn of the event loop."""
    quiet = await shared.with_tenant()
    seen = len(shared.upstream.requests)
    running = shared.gateway.services.inference._running
    async with _every_connection_in_use(shared) as may_end, raw_caller(quiet) as caller:
        await caller.ask()
        await eventually(lambda: _replica(shared).waiting == 1)
        (waiting,) = (one for one in running._running if one.owner_calls.owner == _owner(quiet))
        may_end.set()
        while _replica(shared).waiting:  # noqa: ASYNC110 - it counts turns
            await asyncio.sleep(0)
        assert waiting.waits_to_be_sent
        running.abandon(waiting)
        await eventually(lambda: waiting not in running._running)
        await _assert_is_released(quiet)
    await _assert_nothing_was_paid(quiet)
    assert len(shared.upstream.requests) == seen + _CONNECTIONS


def _owner(scripted: ScriptedGateway) -> int:
    return scripted.tenant.organization_id.int
