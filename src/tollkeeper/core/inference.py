"""What faces and backends exchange: a `Call`, and the events of its answer. Metering and policies read the
events, so they know no protocol.

A stream makes an event for every piece of text, so the garbage collector doesn't track them (`gc=False`).
They're final, because comparing an event's type is faster than `isinstance`.
"""

from collections.abc import Sequence
from enum import StrEnum
from operator import attrgetter
from typing import TypeAlias, final

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.catalog import Model
from tollkeeper.core.messages_behavior import PromptCaching
from tollkeeper.core.prompt import FreeObject, Prompt, SearchBlock
from tollkeeper.core.usage import ReportedUsage

# None: no `ttl`.
_FIVE_MINUTES = (None, "5m")
TEXT, IMAGE = "text", "image"
# The interface has no field for anything else that a model may write.
OUTPUT_MODALITIES = frozenset({TEXT, IMAGE})


class Finish(StrEnum):
    """`provider_words.py` lists further reasons that a chat client gets unchanged."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    FUNCTION_CALL = "function_call"
    # A chat client gets null, as the interface allows.
    UNSTATED = ""


# More specific than the members of `Finish`.
EXACT_STOP_REASONS = frozenset({"stop_sequence", "pause_turn", "model_context_window_exceeded"})


class Call(msgspec.Struct, frozen=True):
    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    model: Model
    # `n`, and the tokens of each completion.
    choices: int
    output_tokens_max: int
    # In which the client sent the limit.
    output_limit_field: str
    # A backend may stream in both cases.
    streamed: bool
    prompt: Prompt
    # Processing it in one go would block the event loop.
    is_large: bool = False
    # Before admission, perhaps with turns that were then removed to fit the context.
    tokenizer_asked: bool = False
    # A hash by which calls with a common beginning prefer the same replica; it doesn't reveal the text.
    affinity: bytes | None = None
    # In addition to those attached to the project, and maybe repeated.
    policy_ids: tuple[str, ...] = ()
    # As the client sent them, each once.
    beta_flags: tuple[str, ...] = ()
    # The client's `traceparent`, unchanged, and the one for the backend, or empty.
    incoming_trace: bytes | None = None
    outgoing_trace: bytes = b""

    @property
    def supported_beta_flags(self) -> list[str]:
        return [flag for flag in self.beta_flags if flag in self.model.messages.beta_flags]

    @property
    def output_tokens_held(self) -> int:
        """For the hold. If the client's limit doesn't cover all output, the most that the model can write."""
        if self.model.exceeds_output_limit:
            return max(self.output_tokens_max, self.model.max_output_length)
        return self.output_tokens_max

    @property
    def asked_service_tier(self) -> str | None:
        for option in self.prompt.options:
            # The backend may choose any tier, as without one.
            if option.name == "service_tier" and option.value != "auto":
                return str(option.value)
        return None

    @property
    def writes_cache_for_1h(self) -> bool:
        """Whether cache writes without a reported lifetime cost the price for an hour: a cache mark asks for
        more than five minutes or, without marks, the settings do; and that price isn't the lower one."""
        pricing, marks = self.model.pricing, self.prompt.cache_marks()
        asks_for_1h = (
            any(mark.get("ttl") not in _FIVE_MINUTES for mark in marks)
            if marks
            else self.model.messages.caching is PromptCaching.ONE_HOUR
        )
        return asks_for_1h and pricing.input_cache_write_1h >= pricing.input_cache_write


class ToolCallPiece(msgspec.Struct, frozen=True, gc=False):
    """Joined, the `arguments` of all pieces with this `index` are the call's. Its `id` and `name` are never
    split."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    # Its arguments are any text, not JSON.
    custom: bool = False


class FunctionCallPiece(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    arguments: str = ""


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """A citation. The positions count the characters of the whole text of the choice, however many items or
    blocks it has."""

    url: str
    title: str
    start_index: int
    end_index: int


@final
class Opened(msgspec.Struct, frozen=True, gc=False):
    """The backend has begun to answer; each answer starts with exactly one."""

    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: msgspec.Raw | None = None


@final
class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of one choice. An answer that isn't streamed has one per choice."""

    choice: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    function_call: FunctionCallPiece | None = None
    annotations: tuple[Annotation, ...] = ()
    # In the form of the chat protocol, as the backend wrote them.
    logprobs: msgspec.Raw | None = None
    # In the last delta of a choice. `finish` may be any word of the provider, `stop_reason` is one of
    # `EXACT_STOP_REASONS`, and `stop_sequence` is the request's stop text that ended the answer, if known.
    finish: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    # Encrypted for the backend; the client returns it with the next request.
    sealed_reasoning: str | None = None
    # After the text, usually `data:` URLs.
    images: tuple[str, ...] = ()
    # As the provider wrote it, for clients that can read it.
    search_block: SearchBlock | None = None


# Whatever isn't text. Most deltas have none.
other_fields = attrgetter(
    *("reasoning", "refusal", "tool_calls", "function_call", "annotations", "logprobs"),
    *("sealed_reasoning", "images", "search_block"),
)


@final
class UsageReport(msgspec.Struct, frozen=True, gc=False):
    """An answer may have several. With an impossible count `usage` is None, and `impossible` has the report
    unchanged."""

    usage: ReportedUsage | None
    impossible: FreeObject | None = None


Event: TypeAlias = Opened | Delta | UsageReport
# Of one network read, delivered together because each delivery takes time.
Batch: TypeAlias = Sequence[Event]
