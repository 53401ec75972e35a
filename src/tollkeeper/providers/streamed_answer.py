"""Reads a streamed answer after its headers. Many servers send these at once, and some then nothing
for minutes while the model reasons, so a stream that breaks off may have cost money without any
content. Only an error record in place of the answer shows that it was free."""

import asyncio
from collections.abc import AsyncIterator, Callable

from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import Batch, Event
from tollkeeper.core.port import TextWriter
from tollkeeper.providers.failures import domain_error, is_fault_of_replica
from tollkeeper.providers.transport.framing import RecordParser
from tollkeeper.providers.transport.http1 import Connection, DeadlinePassed, HttpFailure
from tollkeeper.providers.transport.sse import MalformedEventStream
from tollkeeper.providers.wire import AnswerReader

# Parsed before other tasks may run.
SLICE_BYTES = 16 << 10


class StreamedAnswer:
    """One batch of events per network read. The `AnswerReader` decides whether the answer is
    complete; if not, its failure is raised."""

    def __init__(self, connection: Connection, reader: AnswerReader, parser: RecordParser) -> None:
        self._connection: Connection | None = connection
        self._reader = reader
        self._parser = parser
        # Read by `begin`, for `__anext__`.
        self._unread_events: list[Event] = []
        # Of the last network read, not yet parsed.
        self._rest = b""
        self._relay: Callable[[bytes], int] | None = None
        self.completed = False
        # Counts as the replica's failure.
        self.failed = False

    async def begin(self) -> None:
        """Until the first content. A failure before that is raised, so the client gets an error
        instead of an answer's beginning."""
        reader = self._reader
        events: list[Event] = []
        while not reader.accepted and not reader.ended:
            events += await self._read()
        if not reader.accepted:
            self._end()
        self._unread_events = events

    def relay_text(self, write: TextWriter, count: Callable[[str], None]) -> None:
        """Without events, to `write` and `count`, and only while `__anext__` waits."""
        self._relay = self._reader.open_relay(self._parser, write, count)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._unread_events:
            events, self._unread_events = self._unread_events, []
            return events
        if self._connection is not None:
            # The client's time with the last events isn't the backend's silence.
            self._connection.mark_progress()
        while not self._reader.ended:
            events = await self._read()
            if events:
                return events
        self._end()
        raise StopAsyncIteration

    @property
    def read_to_end(self) -> bool:
        """Properly, so the connection can be reused."""
        return self._reader.ended and self._reader.failure is None

    def release(self) -> Connection:
        """Further reading raises an error."""
        connection, self._connection = self._connection, None
        assert connection is not None
        return connection

    async def _read(self) -> list[Event]:
        """Of one network read, or the next `SLICE_BYTES` of a larger one. A failed read is stored
        in the reader, after the events before it."""
        connection, reader = self._connection, self._reader
        if connection is None:
            raise BackendFailed("The answer was released.", charged=True)
        chunk, self._rest = self._rest, b""
        try:
            if chunk:
                await asyncio.sleep(0)
            else:
                relay = self._relay if self._parser.at_record_start else None
                chunk = await connection.read(relay)
        except HttpFailure as failure:
            self.failed = not isinstance(failure, DeadlinePassed)
            reader.fail(domain_error(failure, charged=True))
            return []
        if not chunk:
            return reader.end_body()
        if len(chunk) > SLICE_BYTES:
            # Many bytes at once must neither block the event loop nor fill the client's
            # write buffer.
            chunk, self._rest = chunk[:SLICE_BYTES], chunk[SLICE_BYTES:]
        try:
            payloads = self._parser.feed(chunk)
        except MalformedEventStream as error:
            events = reader.read(error.payloads)
            malformed = f"The backend's stream is malformed: {error}."
            # Clients can request too large records.
            reader.fail(
                BackendFailed(malformed, charged=True, may_be_client_fault=error.is_too_large)
            )
            return events
        events = reader.read(payloads)
        # Doesn't run before the first content. With events, `__anext__` marks progress
        # before the next read.
        idle_timeout_runs = reader.failing or (reader.accepted and not events)
        if idle_timeout_runs and (
            payloads or (self._parser.line_end_is_progress and b"\n" in chunk)
        ):
            # Only a record or line end counts, or a backend could prevent the timeout
            # with single bytes.
            connection.mark_progress()
        return events

    def _end(self) -> None:
        """Raises the failure of an answer that didn't end properly."""
        failure = self._reader.failure
        if failure is None:
            self.completed = True
            return
        self.failed = self.failed or is_fault_of_replica(failure)
        if self._reader.accepted:
            # The backend has begun to answer, so it charges.
            failure.charged = True
        raise failure
