"""Tests that an answer that arrives quickly is processed in slices, so that other tasks run in between."""

import asyncio
from typing import cast

import pytest

from tests.support.backend_calls import make_call
from tests.support.upstream import chunk, sse
from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import Delta
from tollkeeper.providers.chat.stream import ChatStreamReader
from tollkeeper.providers.streamed_answer import SLICE_BYTES, StreamedAnswer
from tollkeeper.providers.transport.http1 import Connection
from tollkeeper.providers.transport.sse import EventStreamParser

_PIECE = sse(chunk("word " * 10))
_PIECES = 1000
_END = sse(chunk(None, finish="stop")) + b"data: [DONE]\n\n"


class _Poured:
    """Acts as a connection on which the whole answer has arrived."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = [*chunks, b""]

    async def read(self, relay: object) -> bytes:
        return self._chunks.pop(0)

    def mark_progress(self) -> None: ...


def _answer(*chunks: bytes) -> StreamedAnswer:
    connection = cast("Connection", _Poured(*chunks))
    call = make_call(streamed=True, output_tokens_max=8000)
    return StreamedAnswer(connection, ChatStreamReader(call), EventStreamParser(1 << 20))


async def _batches(answer: StreamedAnswer) -> list[int]:
    """Returns the number of pieces in each batch."""
    await answer.begin()
    return [sum(isinstance(event, Delta) for event in batch) async for batch in answer]


async def test_a_large_read_is_taken_in_slices() -> None:
    poured = _PIECE * _PIECES + _END
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    answer = _answer(poured)
    batches = await _batches(answer)
    others.cancel()
    assert answer.completed
    # The additional piece contains the finish reason.
    assert sum(batches) == _PIECES + 1
    assert max(batches) <= SLICE_BYTES // len(_PIECE) + 1
    assert turns >= len(poured) // SLICE_BYTES


async def test_small_reads_are_batches_as_they_come() -> None:
    batches = await _batches(_answer(_PIECE * 3, _PIECE * 5, _END))
    assert batches == [3, 5, 1]


async def test_what_is_wrong_in_a_later_slice_ends_the_answer_there() -> None:
    count = 3 * SLICE_BYTES // len(_PIECE)
    answer = _answer(_PIECE * count + b"data: {\n\n" + _PIECE * count)
    await answer.begin()
    found = 0
    with pytest.raises(BackendFailed, match="malformed"):
        async for batch in answer:
            found += sum(isinstance(event, Delta) for event in batch)
    assert found == count
    assert answer.failed
