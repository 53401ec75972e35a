"""How a stream is cut into records: by its content type."""

from enum import StrEnum
from typing import Protocol

from tollkeeper.backends.transport.aws_event_stream import AwsEventStreamParser
from tollkeeper.backends.transport.sse import EventStreamParser


class Framing(StrEnum):
    """The value is the content type that is asked for and has to come."""

    SERVER_SENT_EVENTS = "text/event-stream"
    AWS_EVENT_STREAM = "application/vnd.amazon.eventstream"


class RecordParser(Protocol):
    # Whether a line is progress, also where it completes no record.
    counts_lines: bool
    frame_bytes_max: int
    # Whether the next chunk begins a record: nothing is pending from the chunks before it. It may be
    # False where that is so.
    at_record_start: bool

    def feed(self, chunk: bytes) -> list[bytes]:
        """The records that this chunk completes. Raises MalformedEventStream."""
        ...


def open_parser(framing: Framing, frame_bytes_max: int) -> RecordParser:
    if framing is Framing.AWS_EVENT_STREAM:
        return AwsEventStreamParser(frame_bytes_max)
    return EventStreamParser(frame_bytes_max)
