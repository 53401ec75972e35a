"""Defines the interface between calls and an optional tracer, which `bootstrap` chooses."""

from typing import Protocol

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch, Call


class AnswerCollector(Protocol):
    def add(self, batch: Batch) -> None:
        """Receives the content that the client got. Neither blocks nor raises."""
        ...


class CallSpan(Protocol):
    """Represents the span of one running call."""

    @property
    def answer(self) -> AnswerCollector | None:
        """Collects the answer, if the operator wants content on spans."""
        ...

    @property
    def traceparent(self) -> bytes:
        """Returns the header that makes the backend's span a child of this one."""
        ...

    def ended(self, record: ActivityRecord) -> None:
        """Ends the span. Neither blocks nor raises."""
        ...


class CallTracer(Protocol):
    def started(self, call: Call) -> CallSpan: ...

    def close(self) -> None:
        """Exports the remaining spans, within a time limit. Blocks."""
        ...
