"""Counting what a backend delivers, so that every ending of a call can be charged."""

from collections.abc import Iterable
from dataclasses import dataclass

from tollkeeper.domain.inference import Call, Delta, Event, UsageReport
from tollkeeper.domain.usage import Usage

# A piece of a stream is one token as a rule; a longer one was put together of several.
_ONE_TOKEN_LENGTH_MAX = 32
_BYTES_PER_TOKEN = 4


@dataclass(slots=True)
class Meter:
    """The running count of one answer. The first sound usage report counts; later ones do not."""

    call: Call
    prompt_tokens: int
    usage: Usage | None = None
    absurd_reports: int = 0
    output_tokens: int = 0
    finish: str | None = None
    # Something of the answer has come, be it only its end: from now on there is something to pay.
    delivered: bool = False

    def count(self, batch: Iterable[Event]) -> None:
        for event in batch:
            if isinstance(event, Delta):
                self._count_delta(event)
            elif isinstance(event, UsageReport):
                self._take(event.usage)

    def _count_delta(self, delta: Delta) -> None:
        self.delivered = True
        if delta.finish is not None:
            self.finish = delta.finish
        for text in (delta.text, delta.reasoning, delta.refusal):
            if text:
                self.output_tokens += _tokens(text)
        for piece in delta.tool_calls:
            self.output_tokens += _tokens((piece.name or "") + piece.arguments)
        if delta.function_call is not None:
            called = delta.function_call
            self.output_tokens += _tokens((called.name or "") + called.arguments)

    def _take(self, usage: Usage | None) -> None:
        if usage is None or not plausible(usage, self.call):
            self.absurd_reports += 1
        elif self.usage is None:
            self.usage = usage

    def estimate(self) -> Usage:
        """Prompt and output by our own count, within the bounds that were reserved."""
        bound = self.call.choices * self.call.output_tokens_max
        return Usage(
            prompt_tokens=self.prompt_tokens, completion_tokens=min(self.output_tokens, bound)
        )


def _tokens(piece: str) -> int:
    """A fair guess, not a bound: what it says is charged."""
    if len(piece) <= _ONE_TOKEN_LENGTH_MAX:
        return 1
    return -(-len(piece.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def plausible(usage: Usage, call: Call) -> bool:
    """More than a context can hold was never used, whatever the backend says."""
    context = call.model.context_length
    return usage.prompt_tokens <= context and usage.completion_tokens <= context * call.choices
