"""Selects the parser that splits a stream into records, by its content type."""

from enum import StrEnum
from typing import Protocol

from tollkeeper.backends.transport.aws_event_stream import AwsEventStreamParser
from tollkeeper.backends.transport.sse import EventStreamParser


class Framing(StrEnum):
    """The values are the requested and required content types."""

    SERVER_SENT_EVENTS = "text/event-stream"
    AWS_EVENT_STREAM = "application/vnd.amazon.eventstream"


class RecordParser(Protocol):
    # Whether a line is progress, even if it completes no record.
    counts_lines: bool
    frame_bytes_max: int
    # Whether the next chunk begins a record: nothing is pending from earlier chunks. It may be
    # False even then.
    at_record_start: bool

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the records that this chunk completes. Raises MalformedEventStream."""
        ...


def open_parser(framing: Framing, frame_bytes_max: int) -> RecordParser:
    if framing is Framing.AWS_EVENT_STREAM:
        return AwsEventStreamParser(frame_bytes_max)
    return EventStreamParser(frame_bytes_max)
