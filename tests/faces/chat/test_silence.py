"""Tests that comments keep a silent stream alive, and that no comment follows the end of a stream."""

import asyncio
from pathlib import Path

import pytest

from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import COST, answering_gateway, read_stream
from tollkeeper.http import sse
from tollkeeper.http.sse import KEEP_ALIVE, EventStream


async def test_a_long_silence_is_filled_with_comments(
    data_dir: Path, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "_SILENCE_S", 0.05)
    async with answering_gateway(data_dir, conninfo) as scripted:
        paused = PausedAnswer()
        scripted.upstream.play(paused.verb(3))
        asyncio.get_running_loop().call_later(0.6, paused.may_end.set)
        found = await scripted.chat(stream=True)
        said = read_stream(found.text)
        assert said.done
        assert said.text == "0 1 2 "
        comments = found.text.count(KEEP_ALIVE.decode())
        assert 2 <= comments <= 12
        assert found.text.index("2 ") < found.text.index(KEEP_ALIVE.decode())
        assert (await scripted.entry_of(found)).cost == COST


class _SlowReader:
    """Imitates a writer whose client reads only while `readable` is set."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.wrote = False
        self.readable = asyncio.Event()
        self.readable.set()

    @property
    def paused(self) -> bool:
        return not self.readable.is_set()

    async def resumed(self) -> None:
        await self.readable.wait()

    def start(self, status: int, headers: bytes) -> None:
        assert (status, self.sent) == (200, [])

    def write(self, piece: bytes) -> None:
        self.wrote = True
        self.sent.append(piece)

    def piece_writer(self, before: bytes, after: bytes) -> None:
        """Returns None, so the stream writes whole records."""

    def end(self, piece: bytes) -> None:
        self.sent.append(piece)


async def test_nothing_comes_after_the_end() -> None:
    """Tests a client that reads slowly at the end. The end has to wait while the timer is still running."""
    caller = _SlowReader()
    stream = EventStream(caller, "id")
    await stream.write(b"data: 1\n\n")
    caller.readable.clear()
    ending = asyncio.create_task(stream.end(b"data: [DONE]\n\n"))
    await asyncio.sleep(0)
    for _ in range(4):
        stream.keep_alive()
        await asyncio.sleep(0)
    caller.readable.set()
    await ending
    stream.keep_alive()
    await asyncio.sleep(0)
    assert caller.sent[-1] == b"data: [DONE]\n\n"
    assert KEEP_ALIVE not in caller.sent
