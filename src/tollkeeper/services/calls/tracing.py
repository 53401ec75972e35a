"""What a call tells a tracer, where there is one. The tracer itself is chosen in `bootstrap`."""

from typing import Protocol

from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.inference import Batch, Call


class AnswerCollector(Protocol):
    def add(self, batch: Batch) -> None:
        """Takes what the caller was given. Neither blocks nor raises."""
        ...


class CallSpan(Protocol):
    """The span of one running call."""

    @property
    def answer(self) -> AnswerCollector | None:
        """Collects the answer, where the operator wants content on spans."""
        ...

    @property
    def traceparent(self) -> bytes:
        """The header that makes the backend's span a child of this one."""
        ...

    def ended(self, record: ActivityRecord) -> None:
        """Neither blocks nor raises."""
        ...


class CallTracer(Protocol):
    def started(self, call: Call) -> CallSpan: ...

    def close(self) -> None:
        """Exports what is left, within a bound. Blocks."""
        ...
