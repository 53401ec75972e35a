"""Reads one streamed answer, from the first byte after the headers to the end.

The headers do not show whether the backend has begun to work: many servers send the headers at once,
and some servers then send nothing for minutes while the model reasons. So a stream that breaks off
may have cost money, even if no content has arrived. Only an error record in place of the answer shows
that the call cost nothing.
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

# The maximum number of bytes that are parsed before other tasks of the event loop may run.
SLICE_BYTES = 16 << 10


class StreamedAnswer:
    """Iterates over the events of a streamed answer, in one batch for each network read. The
    `AnswerReader` decides whether the answer is complete. After an incomplete answer, the iterator
    raises the failure."""

    def __init__(self, connection: Connection, reader: AnswerReader, parser: RecordParser) -> None:
        self._connection: Connection | None = connection
        self._reader = reader
        self._parser = parser
        # Events that `begin` has read, until `__anext__` returns them.
        self._unread_events: list[Event] = []
        # The part of the last network read that is not yet parsed.
        self._rest = b""
        self._relay: Callable[[bytes], int] | None = None
        self.completed = False
        # Whether the answer ended in a way that counts as a failure of the replica.
        self.failed = False

    async def begin(self) -> None:
        """Reads until the first content has arrived. Raises a failure that comes before the first
        content, so that the client gets an error instead of the beginning of an answer."""
        reader = self._reader
        events: list[Event] = []
        while not reader.accepted and not reader.ended:
            events += await self._read()
        if not reader.accepted:
            self._end()
        self._unread_events = events

    def relay_text(self, write: TextWriter, count: Callable[[str], None]) -> None:
        """Relays text as soon as it arrives: passes it to `write` and `count` without creating
        events. Text is relayed only while `__anext__` waits."""
        self._relay = self._reader.open_relay(self._parser, write, count)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._unread_events:
            events, self._unread_events = self._unread_events, []
            return events
        if self._connection is not None:
            # The time that the client needed for the last events does not count as silence of the
            # backend, so the idle timeout restarts.
            self._connection.mark_progress()
        while not self._reader.ended:
            events = await self._read()
            if events:
                return events
        self._end()
        raise StopAsyncIteration

    @property
    def read_to_end(self) -> bool:
        """Tells whether the answer was read to its proper end, so that the connection can be
        reused."""
        return self._reader.ended and self._reader.failure is None

    def release(self) -> Connection:
        """Stops using the connection, and returns it. Reading more of the answer then raises an
        error."""
        connection, self._connection = self._connection, None
        assert connection is not None
        return connection

    async def _read(self) -> list[Event]:
        """Returns the events of one network read, or of the next `SLICE_BYTES` of a larger read. If
        the read fails, stores the failure in the reader and returns the events before the
        failure."""
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
            # A backend that sends many bytes at once must not block the event loop, and must not
            # fill the write buffer of the client's connection.
            chunk, self._rest = chunk[:SLICE_BYTES], chunk[SLICE_BYTES:]
        try:
            payloads = self._parser.feed(chunk)
        except MalformedEventStream as error:
            events = reader.read(error.payloads)
            malformed = f"The backend's stream is malformed: {error}."
            # A client can request an answer with records that are too large.
            reader.fail(
                BackendFailed(malformed, charged=True, may_be_client_fault=error.is_too_large)
            )
            return events
        events = reader.read(payloads)
        # Before the first content, the idle timeout does not apply. If there are events, `__anext__`
        # marks the progress before the next read.
        idle_timeout_runs = reader.failing or (reader.accepted and not events)
        if idle_timeout_runs and (
            payloads or (self._parser.line_end_is_progress and b"\n" in chunk)
        ):
            # Only a record or a line end restarts the idle timeout. Otherwise a backend could prevent
            # the timeout with single bytes.
            connection.mark_progress()
        return events

    def _end(self) -> None:
        """Records the end of the answer. Raises the failure if the answer did not end properly."""
        failure = self._reader.failure
        if failure is None:
            self.completed = True
            return
        self.failed = self.failed or is_fault_of_replica(failure)
        if self._reader.accepted:
            # The backend has begun to answer, so it charges for the call, even if the answer failed.
            failure.charged = True
        raise failure
