"""Tests database outages: no client is told that a call is complete before the call is settled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx2
import pytest

from tests.support.data_folders import data_folder
from tests.support.gateway import assert_error
from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import (
    COST,
    ScriptedGateway,
    eventually,
    read_stream,
    scripted_gateway,
)
from tests.support.upstream import Peer, Upstream, answer, chat
from tollkeeper.calls import inference
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.migrations import migrate
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow

T = TypeVar("T")


@dataclass
class Server:
    """A database server that a test can stop without the gateway's knowledge."""

    embedded: EmbeddedPostgres
    running: ExitStack

    async def stop(self) -> None:
        await asyncio.to_thread(self.running.close)

    async def start(self) -> None:
        await asyncio.to_thread(self.running.enter_context, self.embedded)


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Server]:
    with data_folder() as folder, ExitStack() as running:
        embedded = running.enter_context(EmbeddedPostgres(folder))
        migrate(embedded.conninfo)
        yield Server(embedded, running)


@asynccontextmanager
async def impatient(
    server: Server, data_dir: Path, *, deadline_s: float = 60
) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway on this server that waits only 0.5 seconds for a connection."""
    async with (
        Upstream(chat()) as upstream,
        scripted_gateway(
            data_dir,
            server.embedded.conninfo,
            upstream,
            limits={"inference_deadline_s": deadline_s},
            changed_constants={"setup.services.Database": {"pool_timeout_s": 0.5}},
        ) as scripted,
    ):
        yield scripted


async def settled(scripted: ScriptedGateway, count: int) -> None:
    """Checks that exactly `count` calls are settled at their exact cost, once the database is reachable."""
    async with asyncio.timeout(60):
        await scripted.gateway.services.ledger.drain()
        await eventually(lambda: scripted.gateway.services.ledger.open_holds == 0)
        entries = await patiently(scripted.entries)
        balance = await patiently(scripted.balance)
    assert [(entry.status, entry.cost) for entry in entries] == [("settled", COST)] * count
    assert (balance["held"], balance["resolutions"]) == (0, count)


async def patiently(read: Callable[[], Awaitable[T]]) -> T:
    """Repeats a read until it succeeds. A connection of the pool that is dead is found only by its use,
    and new connections may take longer than the gateway's short pool timeout."""
    while True:
        try:
            return await read()
        except Unavailable:
            await asyncio.sleep(0.1)


@pytest.mark.smoke
async def test_a_restart_under_calls_is_waited_for(server: Server, data_dir: Path) -> None:
    """B1, B2: Calls in flight succeed after the restart. New calls get a 503 with Retry-After."""
    async with impatient(server, data_dir) as scripted:
        paused, may_answer = PausedAnswer(), asyncio.Event()

        async def slow(peer: Peer) -> None:
            if peer.request.json.get("stream"):
                await paused.verb()(peer)
            else:
                await may_answer.wait()
                await answer()(peer)

        scripted.upstream.play(slow)
        calls = [asyncio.ensure_future(scripted.chat(stream=at < 4)) for at in range(6)]
        await eventually(lambda: scripted.upstream.under_way == 6)
        await server.stop()
        try:
            paused.may_end.set()
            may_answer.set()
            found = await scripted.chat()
            assert_error(found, 503, "service_unavailable")
            assert 1 <= int(found.headers["retry-after"]) <= 120
            assert len(scripted.upstream.requests) == 6
            assert not any(call.done() for call in calls)
        finally:
            await server.start()
        answers = await asyncio.gather(*calls)
        for found in answers[:4]:
            assert read_stream(found.text).done
        assert [found.status_code for found in answers] == [200] * 6
        await settled(scripted, 6)


async def test_beyond_the_deadline_it_is_an_error_and_still_paid(
    server: Server, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "SETTLEMENT_S_MIN", 0.2)
    async with impatient(server, data_dir, deadline_s=3) as scripted:
        paused = PausedAnswer()
        may_answer = asyncio.Event()

        async def slow(peer: Peer) -> None:
            await may_answer.wait()
            await answer()(peer)

        scripted.upstream.play(paused.verb(), slow)
        streamed = asyncio.ensure_future(scripted.chat(stream=True))
        await eventually(lambda: scripted.upstream.under_way == 1)
        whole = asyncio.ensure_future(scripted.chat())
        await eventually(lambda: scripted.upstream.under_way == 2)
        await server.stop()
        try:
            paused.may_end.set()
            may_answer.set()
            found = await whole
            assert_error(found, 503, "service_unavailable")
            assert found.headers["x-should-retry"] == "false"
            assert_is_unconfirmed(await streamed)
        finally:
            await server.start()
        await settled(scripted, 2)
        assert (await scripted.chat()).status_code == 200


def assert_is_unconfirmed(found: httpx2.Response) -> None:
    """Checks that the text is complete, but that the stream ends with an error record."""
    said = read_stream(found.text)
    assert said.text == "0 1 "
    assert not said.done
    assert said.error is not None
    assert said.error["code"] == "service_unavailable"
    assert said.error["request_id"] == found.headers["x-request-id"]
