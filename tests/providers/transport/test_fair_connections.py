"""Tests that organizations take turns if all connections to a replica are in use, within limits."""

import asyncio
import contextlib
from uuid import UUID, uuid4

from msgspec.structs import replace

from tests.support.backend_calls import Outcome, make, make_call, routed, until
from tests.support.upstream import Peer, Upstream, answer, chat, chat_records, hang
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.port import Backend


async def _call(backend: Backend, organization: UUID) -> Outcome:
    return await make(backend, replace(make_call(), organization_id=OrganizationId(organization)))


class _Gate:
    """Answers as many calls as `let` allows; further calls wait."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(0)

    def let(self, count: int) -> None:
        for _ in range(count):
            self._turns.release()

    async def verb(self, peer: Peer) -> None:
        await self._turns.acquire()
        await answer()(peer)


async def test_a_call_waits_for_a_connection() -> None:
    gate = _Gate()
    async with Upstream(gate.verb) as upstream, routed(upstream.url, connections_max=1) as backend:
        calls = [asyncio.create_task(make(backend, make_call())) for _ in range(3)]
        await until(lambda: len(upstream.requests) == 1)
        gate.let(3)
        for outcome in await asyncio.gather(*calls):
            outcome.check_complete()
        assert upstream.connections == 1


async def test_a_call_waits_for_a_connection_that_is_closed() -> None:
    """The caller of the first call disconnects. Its connection is still closing when the second call
    may open another one."""
    async with (
        Upstream(hang(), chat()) as upstream,
        routed(upstream.url, connections_max=1) as backend,
    ):
        held = asyncio.create_task(make(backend, make_call()))
        await until(lambda: len(upstream.requests) == 1)
        waiting = asyncio.create_task(make(backend, make_call()))
        await asyncio.sleep(0)
        held.cancel()
        (await waiting).check_complete()
        await asyncio.gather(held, return_exceptions=True)


async def test_a_call_waits_for_a_connection_that_drains() -> None:
    """A server sends the end of the HTTP body a moment after `[DONE]`. Until then the connection is open,
    but no call uses it."""

    async def end_late(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(b"".join(chat_records()))
        await asyncio.sleep(0.05)
        with contextlib.suppress(ConnectionError):
            await peer.end_chunks()

    async with Upstream(end_late) as upstream, routed(upstream.url, connections_max=2) as backend:
        calls = [make(backend, make_call(streamed=True)) for _ in range(6)]
        for outcome in await asyncio.gather(*calls):
            outcome.check_complete()
        assert backend.health().reports[0].connections <= 2


async def test_an_organization_that_floods_waits_behind_itself() -> None:
    hostile, quiet, gate = uuid4(), uuid4(), _Gate()
    async with Upstream(gate.verb) as upstream, routed(upstream.url, connections_max=2) as backend:
        flood = [asyncio.create_task(_call(backend, hostile)) for _ in range(20)]
        await until(lambda: len(upstream.requests) == 2)
        waiting = asyncio.create_task(_call(backend, quiet))
        await asyncio.sleep(0)
        # Two calls are in flight, one is next, and then it is the turn of the other organization.
        gate.let(4)
        (await waiting).check_complete()
        assert sum(not task.done() for task in flood) >= 16
        gate.let(20)
        for outcome in await asyncio.gather(*flood):
            outcome.check_complete()


async def test_one_organization_does_not_hold_every_connection() -> None:
    hostile, quiet = uuid4(), uuid4()
    async with Upstream(hang()) as upstream, routed(upstream.url, connections_max=8) as backend:
        held = [asyncio.create_task(_call(backend, hostile)) for _ in range(30)]
        await until(lambda: len(upstream.requests) == 7)
        upstream.play(chat())
        for _ in range(10):
            (await _call(backend, quiet)).check_complete()
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        for _ in range(10):
            (await _call(backend, hostile)).check_complete()


async def test_beyond_the_bound_calls_are_refused_at_once() -> None:
    hostile, quiet, gate = uuid4(), uuid4(), _Gate()
    async with (
        Upstream(gate.verb) as upstream,
        routed(upstream.url, connections_max=1, connections_waiting_max=8) as backend,
    ):
        flood = [asyncio.create_task(_call(backend, hostile)) for _ in range(3)]
        await until(lambda: len(upstream.requests) == 1)
        refused = await _call(backend, hostile)
        assert type(refused.error) is Unavailable
        assert refused.error.retry_after_s == 1
        assert not refused.error.charged
        waiting = asyncio.create_task(_call(backend, quiet))
        await asyncio.sleep(0)
        gate.let(4)
        for outcome in await asyncio.gather(*flood, waiting):
            outcome.check_complete()


async def test_a_wait_for_a_connection_has_its_end() -> None:
    async with (
        Upstream(hang()) as upstream,
        routed(upstream.url, connections_max=1, connect_timeout_s=0.05) as backend,
    ):
        held = asyncio.create_task(make(backend, make_call()))
        await until(lambda: len(upstream.requests) == 1)
        refused = await make(backend, make_call())
        assert type(refused.error) is Unavailable
        assert backend.health().ready
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
