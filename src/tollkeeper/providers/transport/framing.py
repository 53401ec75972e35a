"""Selects the parser that splits a stream into records, by the content type of the stream. A record
is one server-sent event, or one message of AWS's binary event stream."""

from enum import StrEnum
from typing import Protocol

from tollkeeper.providers.transport.aws_event_stream import AwsEventStreamParser
from tollkeeper.providers.transport.sse import EventStreamParser


class Framing(StrEnum):
    """Lists the stream formats. The value of a format is its content type: the gateway requests
    this type, and rejects an answer with another type."""

    SERVER_SENT_EVENTS = "text/event-stream"
    AWS_EVENT_STREAM = "application/vnd.amazon.eventstream"


class RecordParser(Protocol):
    """Splits one stream into records."""

    # Whether a chunk with a line end restarts the idle timeout, even if the chunk completes no record.
    line_end_is_progress: bool
    # The maximum size of one record in the stream. A larger record is malformed.
    record_bytes_max: int
    # True only if the next chunk begins with a new record. Text is relayed to the client only while
    # this is True. If a parser leaves it False, all text is delivered as events.
    at_record_start: bool

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data of the records that this chunk completes. Raises
        MalformedEventStream."""
        ...


def open_parser(framing: Framing, record_bytes_max: int) -> RecordParser:
    if framing is Framing.AWS_EVENT_STREAM:
        return AwsEventStreamParser(record_bytes_max)
    return EventStreamParser(record_bytes_max)
