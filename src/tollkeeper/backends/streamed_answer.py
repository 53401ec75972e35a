"""Reads one streamed answer, from the first byte after its headers to its end.

The headers do not show whether work has begun: many servers send them first, and some then reason
for minutes silently. So an interrupted stream may have cost something, even if nothing of it has
arrived; only an error record in place of the answer shows that it did not.
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

# How much of a stream is read at once.
SLICE_BYTES = 16 << 10


class StreamedAnswer:
    """Reads the connection and returns the events of each network read. The reader decides whether
    an answer ends properly; any other end is raised."""

    def __init__(self, connection: Connection, reader: AnswerReader, parser: RecordParser) -> None:
        self._connection: Connection | None = connection
        self._reader = reader
        self._parser = parser
        # Events that were read and not yet requested.
        self._unread_events: list[Event] = []
        # Data of the last network read that is not processed yet.
        self._rest = b""
        self.completed = False
        # Whether the end counts as a fault of the replica.
        self.failed = False

    async def begin(self) -> None:
        """Reads until the first content has arrived, so that an earlier failure is a separate error
        and not the sudden end of an answer."""
        reader = self._reader
        events: list[Event] = []
        while not reader.accepted and not reader.ended:
            events += await self._read()
        if not reader.accepted:
            self._end()
        self._unread_events = events

    def relay_text(self, write: TextWriter, count: Callable[[str], None]) -> None:
        """Relays text from now on as it arrives, while a caller waits for events."""
        relay = self._reader.open_relay(self._parser, write, count)
        if relay is not None and self._connection is not None:
            self._connection.relay(relay)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._unread_events:
            events, self._unread_events = self._unread_events, []
            return events
        if self._connection is not None:
            # The client's own pace is not the backend's silence.
            self._connection.mark_progress()
        while not self._reader.ended:
            events = await self._read()
            if events:
                return events
        self._end()
        raise StopAsyncIteration

    @property
    def read_to_end(self) -> bool:
        """Tells whether no more data follows, so that the connection can be reused."""
        return self._reader.ended and self._reader.failure is None

    def release(self) -> None:
        """Releases the connection. Reading more of the answer raises an error."""
        self._connection = None

    async def _read(self) -> list[Event]:
        """Returns the events of one network read, or of a slice of it. Records a failure in the
        reader."""
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
            # A backend that sends much at once must not block the event loop, nor fill the memory
            # of a client's connection.
            chunk, self._rest = chunk[:SLICE_BYTES], chunk[SLICE_BYTES:]
        try:
            payloads = self._parser.feed(chunk)
        except MalformedEventStream as error:
            events = reader.read(error.payloads)
            malformed = f"The backend's stream is malformed: {error}."
            reader.fail(BackendFailed(malformed, charged=True))
            return events
        events = reader.read(payloads)
        # The consumer of the events marks the progress before the next read.
        is_waited_for = reader.failing or (reader.accepted and not events)
        if is_waited_for and (payloads or (self._parser.counts_lines and b"\n" in chunk)):
            # A single byte is not progress; a line is.
            connection.mark_progress()
        return events

    def _end(self) -> None:
        """Raises the failure that ended the answer, unless it ended properly."""
        failure = self._reader.failure
        if failure is None:
            self.completed = True
            return
        self.failed = self.failed or is_fault_of_replica(failure)
        if self._reader.accepted:
            # An accepted call has a price, however the answer ended.
            failure.charged = True
        raise failure
