"""Defines the interface through which calls use a tracer. Tracing is optional; `bootstrap` creates
the tracer."""

from typing import Protocol

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch, Call


class AnswerCollector(Protocol):
    def add(self, batch: Batch) -> None:
        """Receives events that were delivered to the client. Neither blocks nor raises."""
        ...


class CallSpan(Protocol):
    """Represents the tracing span of one running call."""

    @property
    def answer(self) -> AnswerCollector | None:
        """Returns the collector for the answer; None if the settings exclude content from spans."""
        ...

    @property
    def traceparent(self) -> bytes:
        """Returns the `traceparent` header value that makes the backend's span a child of this
        span."""
        ...

    def ended(self, record: ActivityRecord) -> None:
        """Ends the span. Neither blocks nor raises."""
        ...


class CallTracer(Protocol):
    def started(self, call: Call) -> CallSpan: ...

    def close(self) -> None:
        """Exports the remaining spans, within a time limit. Blocks."""
        ...
