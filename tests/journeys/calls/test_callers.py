"""Tests clients that disconnect, stall or send in pieces: the backend stops, and its work is charged."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.paused_answer import PausedAnswer
from tests.support.raw_caller import RawCaller, raw_caller
from tests.support.scripted_gateway import (
    COST,
    Entry,
    ScriptedGateway,
    answering_gateway,
    eventually,
    scripted_gateway,
)
from tests.support.upstream import (
    DONE,
    Peer,
    Upstream,
    answer,
    chat,
    chunk,
    hang,
    refuse,
    sse,
    usage_chunk,
)

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
ABRUPTLY = pytest.mark.parametrize("abruptly", [False, True], ids=["close", "reset"])


@pytest.fixture(scope="module")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        drain_s=0.5,
        changed_constants={"entry.descriptors.HttpLimits": {"write_timeout_s": 0.5}},
    ) as running:
        yield running
        await running.every_connection_ends()


@pytest.fixture
async def scripted(scripted: ScriptedGateway) -> AsyncIterator[ScriptedGateway]:
    """Checks after each test that no task, socket or file of its calls is left."""
    async with scripted.leaving_nothing():
        yield scripted


async def only_entry(scripted: ScriptedGateway) -> Entry:
    """Waits until the tenant's call has ended, and returns its only reservation."""
    await eventually(lambda: scripted.gateway.services.inference.running == 0)
    balance = await scripted.balance()
    assert (balance["held"], balance["unsettled"], balance["resolutions"]) == (0, 0, 1)
    (entry,) = await scripted.entries()
    return entry


async def only_unsettled_entry(scripted: ScriptedGateway) -> Entry:
    """Does the same as `only_entry`, for a call whose cost is unknown."""
    await eventually(lambda: scripted.gateway.services.inference.running == 0)
    balance = await scripted.balance()
    (entry,) = await scripted.entries()
    assert (balance["held"], balance["resolutions"]) == (0, 0)
    assert (entry.status, balance["unsettled"]) == ("unsettled", entry.hold)
    return entry


async def leave_after(caller: RawCaller, records: int, *, abruptly: bool) -> None:
    await caller.head()
    for _ in range(records):
        await caller.record()
    caller.leave(abruptly=abruptly)


# C1: the request is incomplete, or its call was not sent.


@ABRUPTLY
@pytest.mark.parametrize("sent", [0.0, 0.5, 0.99])
async def test_gone_before_the_request_is_whole(
    scripted: ScriptedGateway, sent: float, abruptly: bool
) -> None:
    calls = len(scripted.upstream.requests)
    async with raw_caller(scripted) as caller:
        await caller.ask(sent=sent)
        await asyncio.sleep(0.05)
        caller.leave(abruptly=abruptly)
    await scripted.balance()
    assert await scripted.entries() == []
    assert len(scripted.upstream.requests) == calls


@BOTH
async def test_gone_before_anything_is_dispatched(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    """The client leaves while the admission waits for the account row, which another session has locked."""
    calls = len(scripted.upstream.requests)
    async with raw_caller(scripted) as caller:
        async with scripted.gateway.services.database.transaction() as connection:
            await connection.execute(
                "SELECT FROM accounts WHERE organization_id = %s FOR UPDATE",
                (scripted.tenant.organization_id,),
            )
            await caller.ask(stream=streamed)
            await eventually(lambda: scripted.gateway.services.inference.running == 1)
            caller.leave(abruptly=False)
            await asyncio.sleep(0.3)
        entry = await only_entry(scripted)
    assert entry.status == "released"
    assert len(scripted.upstream.requests) == calls


# C2: the client leaves while the backend works and has sent nothing.


@ABRUPTLY
@BOTH
async def test_gone_while_the_backend_is_silent(
    scripted: ScriptedGateway, streamed: bool, abruptly: bool
) -> None:
    scripted.upstream.play(hang())
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=streamed)
        await eventually(lambda: scripted.upstream.under_way == 1)
        caller.leave(abruptly=abruptly)
        await eventually(lambda: scripted.upstream.under_way == 0)
    entry = await only_unsettled_entry(scripted)
    assert (entry.reason, entry.hold > 0) == ("The client disconnected.", True)


async def test_gone_while_json_is_made_and_the_rest_is_read(scripted: ScriptedGateway) -> None:
    working = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await working.wait()
        await answer()(peer)

    scripted.upstream.play(slow)
    async with raw_caller(scripted) as caller:
        await caller.ask()
        await eventually(lambda: scripted.upstream.under_way == 1)
        caller.leave(abruptly=False)
        await asyncio.sleep(0.05)
        working.set()
    entry = await only_entry(scripted)
    assert (entry.status, entry.estimated, entry.cost) == ("settled", False, COST)


# C3: the client leaves after a number of pieces.


@pytest.mark.parametrize("read", range(9))
async def test_gone_after_pieces_and_the_rest_is_read(scripted: ScriptedGateway, read: int) -> None:
    """The answer ends within the drain time, so its reported usage is charged."""
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb(8))
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=True)
        await leave_after(caller, read, abruptly=read % 2 == 1)
        await asyncio.sleep(0.02)
        paused.may_end.set()
        entry = await only_entry(scripted)
    assert (entry.status, entry.estimated, entry.cost) == ("settled", False, COST)


@pytest.mark.parametrize("read", range(9))
async def test_gone_after_pieces_and_the_backend_goes_on(
    scripted: ScriptedGateway, read: int
) -> None:
    """The answer does not end within the drain time. The gateway disconnects and charges the delivered part."""
    paused = PausedAnswer()
    pieces = max(read, 1)
    scripted.upstream.play(paused.verb(pieces))
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=True)
        await leave_after(caller, read, abruptly=read % 2 == 0)
        await asyncio.wait_for(paused.closed.wait(), 20)
        entry = await only_entry(scripted)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(pieces)


async def test_half_a_goodbye_is_a_goodbye(scripted: ScriptedGateway) -> None:
    paused = PausedAnswer()
    scripted.upstream.play(paused.verb(2))
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=True)
        await caller.head()
        caller.end_of_input()
        await asyncio.wait_for(paused.closed.wait(), 20)
    assert (await only_entry(scripted)).status == "settled"


async def test_leaving_is_seen_after_a_large_request(scripted: ScriptedGateway) -> None:
    """The request is larger than the part that the server reads ahead."""
    scripted.upstream.play(hang())
    for size in (70_000, 300_000, 1_000_000):
        mine = await scripted.with_tenant()
        async with raw_caller(mine) as caller:
            await caller.ask(user="u", messages=[{"role": "user", "content": "x" * size}])
            await eventually(lambda: scripted.upstream.under_way == 1)
            caller.leave(abruptly=False)
            await eventually(lambda: scripted.upstream.under_way == 0)
        assert (await only_unsettled_entry(mine)).hold > 0


async def test_leaving_is_seen_where_the_next_request_waits(scripted: ScriptedGateway) -> None:
    """A second request on the connection does not hide that the client of the first request has left."""
    left = asyncio.Event()

    async def go_on(peer: Peer) -> None:
        await peer.send_head()
        while not peer.left:
            await peer.send_chunk(sse(chunk("more ")))
            await asyncio.sleep(0.05)
        left.set()

    scripted.upstream.play(go_on)
    async with raw_caller(scripted) as caller:
        await caller.ask(stream=True)
        await caller.head()
        await caller.ask(stream=True)
        await asyncio.sleep(0.1)
        caller.leave(abruptly=True)
        await asyncio.wait_for(left.wait(), 20)
    entry = await only_entry(scripted)
    assert (entry.status, entry.estimated) == ("settled", True)


# C4: the client does not read.


def large(number: int) -> bytes:
    return sse(chunk(f"{number} " + "x" * 8000))


async def test_who_does_not_read_is_cut_off(scripted: ScriptedGateway) -> None:
    sent = 0

    async def pour(peer: Peer) -> None:
        nonlocal sent
        await peer.send_head()
        while not peer.left:
            await peer.send_chunk(large(sent))
            sent += 1

    scripted.upstream.play(pour)
    async with raw_caller(scripted, receive_buffer=4096) as caller:
        await caller.ask(stream=True, max_tokens=2048)
        # The client reads nothing: the buffers are limited, and the write timeout ends the call.
        await eventually(lambda: scripted.gateway.services.inference.running == 1)
        await eventually(lambda: scripted.gateway.services.inference.running == 0)
        assert await caller.is_cut_off()
    entry = await only_entry(scripted)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.delivered(1) <= entry.cost <= entry.hold


async def test_who_reads_slowly_gets_everything(scripted: ScriptedGateway) -> None:
    async def pour(peer: Peer) -> None:
        await peer.send_head()
        for number in range(40):
            await peer.send_chunk(large(number))
        for record in (sse(chunk(finish="stop")), sse(usage_chunk()), DONE):
            await peer.send_chunk(record)
        await peer.end_chunks()

    scripted.upstream.play(pour)
    async with raw_caller(scripted, receive_buffer=16384) as caller:
        await caller.ask(stream=True)
        await caller.head()
        texts = 0
        while b"[DONE]" not in (record := await caller.record()):
            texts += b"xxx" in record
            await asyncio.sleep(0.005)
    assert texts == 40
    assert (await only_entry(scripted)).cost == COST


# The gateway drains only a limited number of abandoned calls.


@pytest.mark.parametrize(("drains", "callers"), [(2, 6), (0, 3)])
async def test_only_so_many_are_read_to_their_end(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str, drains: int, callers: int
) -> None:
    async with scripted_gateway(
        data_dir,
        conninfo,
        shared_scripted.upstream,
        changed_constants={"setup.calls.InferenceLimits": {"drains_max": drains}},
    ) as scripted:
        paused = PausedAnswer()
        scripted.upstream.play(paused.verb(3))
        for _ in range(callers):
            async with raw_caller(scripted) as caller:
                await caller.ask(stream=True)
                await leave_after(caller, 2, abruptly=False)
        await eventually(lambda: scripted.upstream.under_way == drains)
        await eventually(lambda: scripted.gateway.services.inference.running == drains)
        paused.may_end.set()
        balance = await scripted.balance()
        assert (balance["held"], balance["resolutions"]) == (0, callers)
        entries = await scripted.entries()
        assert sorted(entry.estimated for entry in entries) == sorted(
            [False] * drains + [True] * (callers - drains)
        )
        assert all(
            entry.cost == (entry.delivered_pieces(3) if entry.estimated else COST)
            for entry in entries
        )


async def test_who_leaves_many_calls_takes_the_reading_on_from_nobody_else(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str
) -> None:
    """A JSON answer that the gateway does not read to its end would stay unsettled, with its whole hold."""
    async with scripted_gateway(
        data_dir,
        conninfo,
        shared_scripted.upstream,
        changed_constants={"setup.calls.InferenceLimits": {"drains_max": 8}},
    ) as hostile:
        quiet = await hostile.with_tenant()
        paused = PausedAnswer()
        hostile.upstream.play(paused.verb(3))
        for _ in range(10):
            async with raw_caller(hostile) as caller:
                await caller.ask(stream=True)
                await leave_after(caller, 2, abruptly=False)
        await eventually(lambda: hostile.gateway.services.inference.running == 7)
        may_answer = asyncio.Event()

        async def late(peer: Peer) -> None:
            await may_answer.wait()
            await chat()(peer)

        asked = len(hostile.upstream.requests)
        hostile.upstream.play(late)
        async with raw_caller(quiet) as caller:
            await caller.ask()
            await eventually(lambda: len(quiet.upstream.requests) == asked + 1)
            caller.leave(abruptly=False)
        running = hostile.gateway.services.inference._running._running
        await eventually(lambda: sum(call.abandoned for call in running) == 8)
        may_answer.set()
        paused.may_end.set()
        entry = await only_entry(quiet)
        assert (entry.status, entry.estimated, entry.cost) == ("settled", False, COST)
        assert sum(one.estimated for one in await hostile.entries()) == 3


# No request is sent for a client that has gone.


async def _gone_from(scripted: ScriptedGateway, caller: RawCaller) -> None:
    """Lets the client disconnect, and waits until the gateway has noticed."""
    (tab,) = scripted.gateway.services.inference._running._running
    caller.leave(abruptly=False)
    await eventually(lambda: tab.abandoned)


@BOTH
async def test_no_other_replica_is_asked_for_a_client_that_has_gone(
    data_dir: Path, conninfo: str, streamed: bool
) -> None:
    may_refuse = asyncio.Event()

    async def refuse_later(peer: Peer) -> None:
        await may_refuse.wait()
        await refuse(503)(peer)

    async with (
        Upstream(refuse_later) as one,
        Upstream(refuse_later) as two,
        scripted_gateway(data_dir, conninfo, one, urls=(one.url, two.url)) as scripted,
        raw_caller(scripted) as caller,
    ):
        await caller.ask(stream=streamed)
        await eventually(lambda: one.under_way + two.under_way == 1)
        await _gone_from(scripted, caller)
        may_refuse.set()
        await eventually(lambda: scripted.gateway.services.inference.running == 0)
        await scripted.balance()
        assert len(one.requests) + len(two.requests) == 1
        assert [entry.status for entry in await scripted.entries()] == ["released"]


async def test_no_further_part_is_sent_for_a_client_that_has_gone(
    data_dir: Path, conninfo: str
) -> None:
    """Each of the 64 completions needs a request. Some requests were sent when the client disconnects, and
    others wait for a connection. The answers to the first ones are read and charged."""
    may_answer = asyncio.Event()

    async def answer_later(peer: Peer) -> None:
        await may_answer.wait()
        await answer()(peer)

    async with (
        Upstream(answer_later) as upstream,
        scripted_gateway(
            data_dir, conninfo, upstream, backend={"native_n": False, "connections": 8}
        ) as scripted,
        raw_caller(scripted) as caller,
    ):
        await caller.ask(n=64)
        # An organization may use seven eighths of the connections.
        await eventually(lambda: upstream.under_way == 7)
        await _gone_from(scripted, caller)
        may_answer.set()
        await eventually(lambda: scripted.gateway.services.inference.running == 0)
        await scripted.balance()
        assert len(upstream.requests) == 7
        (entry,) = await scripted.entries()
        assert (entry.status, entry.cost, entry.estimated) == ("settled", 7 * COST, False)
