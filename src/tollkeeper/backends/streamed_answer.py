"""One streamed answer, from the first byte after its head to its end.

The head says nothing of the work: many servers send it before they begin, and some then reason for
minutes without a word. So a stream that breaks off may have cost something, also where nothing of
it has come; only an error record in the place of the answer says that it did not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from tollkeeper.backends.failures import domain_error, is_fault_of_replica
from tollkeeper.backends.port import TextWriter
from tollkeeper.backends.transport.framing import RecordParser
from tollkeeper.backends.transport.http1 import Connection, DeadlinePassed, HttpFailure
from tollkeeper.backends.transport.sse import MalformedEventStream
from tollkeeper.backends.wire import AnswerReader
from tollkeeper.domain.errors import BackendFailed
from tollkeeper.domain.inference import Batch, Event

# So much of a stream is read on at once.
SLICE_BYTES = 16 << 10


class StreamedAnswer:
    """Reads the connection and hands out the events of each network read. An answer ends properly
    where its reader says so; anything else that ends it is raised."""

    def __init__(self, connection: Connection, reader: AnswerReader, parser: RecordParser) -> None:
        self._connection: Connection | None = connection
        self._reader = reader
        self._parser = parser
        # What has been read and not yet been asked for.
        self._first: list[Event] = []
        # What came with the last network read and is not looked at yet.
        self._rest = b""
        self.completed = False
        # The end is the replica's fault, as far as its health is concerned.
        self.failed = False

    async def begin(self) -> None:
        """Reads until something of substance has come, so that a failure before it is an error of
        its own and not the sudden end of an answer."""
        reader = self._reader
        events: list[Event] = []
        while not reader.accepted and not reader.ended:
            events += await self._read()
        if not reader.accepted:
            self._end()
        self._first = events

    def relay_text(self, write: TextWriter, count: Callable[[str], None]) -> None:
        """From now on, text is written as it arrives while somebody waits for events."""
        relay = self._reader.open_relay(self._parser, write, count)
        if relay is not None and self._connection is not None:
            self._connection.relay(relay)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._first:
            events, self._first = self._first, []
            return events
        if self._connection is not None:
            # The caller's own pace is not the backend's silence.
            self._connection.mark_progress()
        while not self._reader.ended:
            events = await self._read()
            if events:
                return events
        self._end()
        raise StopAsyncIteration

    @property
    def read_to_end(self) -> bool:
        """Nothing more comes of this answer, so its connection can serve another one."""
        return self._reader.ended and self._reader.failure is None

    def release(self) -> None:
        """Gives the connection up. Reading the answer any further raises an error."""
        self._connection = None

    async def _read(self) -> list[Event]:
        """The events of one network read, or of a slice of it. What ends the answer badly is noted in
        its reader."""
        connection, reader = self._connection, self._reader
        if connection is None:
            raise BackendFailed("The answer was released.", charged=True)
        chunk, self._rest = self._rest, b""
        try:
            if chunk:
                await asyncio.sleep(0)
            else:
                chunk = await connection.read()
        except HttpFailure as failure:
            self.failed = not isinstance(failure, DeadlinePassed)
            reader.fail(domain_error(failure, charged=True))
            return []
        if not chunk:
            return reader.end_body()
        if len(chunk) > SLICE_BYTES:
            # A backend that sends much at once shall not keep the event loop from others, nor fill
            # the memory of a caller's connection.
            chunk, self._rest = chunk[:SLICE_BYTES], chunk[SLICE_BYTES:]
        try:
            payloads = self._parser.feed(chunk)
        except MalformedEventStream as error:
            events = reader.read(error.payloads)
            malformed = f"The backend's stream is malformed: {error}."
            reader.fail(BackendFailed(malformed, charged=True))
            return events
        events = reader.read(payloads)
        # The taker of the events marks the progress before the next read.
        is_waited_for = reader.failing or (reader.accepted and not events)
        if is_waited_for and (payloads or (self._parser.counts_lines and b"\n" in chunk)):
            # A byte now and then is no progress; a line is.
            connection.mark_progress()
        return events

    def _end(self) -> None:
        """A proper end, or the failure that ended the answer."""
        failure = self._reader.failure
        if failure is None:
            self.completed = True
            return
        self.failed = self.failed or is_fault_of_replica(failure)
        if self._reader.accepted:
            # What was accepted has a price, however the answer ended.
            failure.charged = True
        raise failure
