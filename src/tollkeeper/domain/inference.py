"""Defines the types that faces and backends exchange: a `Call`, and the events of its answer.

A face (a protocol towards clients) decodes a request into a `Call` and encodes the events of the
answer. A backend encodes the call in the protocol of its server and decodes the answer into events.
Metering and policies read the events, so they are independent of protocols. The garbage collector
does not track the event structs (`gc=False`), because a stream creates an event for every piece of
text. They are final, because code that handles every event compares the event's type, which is
faster than `isinstance`.
"""

from collections.abc import Sequence
from enum import StrEnum
from operator import attrgetter
from typing import TypeAlias, final

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.messages_behavior import PromptCaching
from tollkeeper.domain.prompt import FreeObject, Prompt, SearchBlock
from tollkeeper.domain.usage import ReportedUsage

# The values of a cache mark's `ttl` that mean five minutes. None stands for a missing `ttl`.
_FIVE_MINUTES = (None, "5m")
TEXT, IMAGE = "text", "image"
# The possible kinds of content in an answer. The interface has no field for other kinds that a
# model may write.
OUTPUT_MODALITIES = frozenset({TEXT, IMAGE})


class Finish(StrEnum):
    """Lists the reasons why a choice ended. `provider_words.py` lists further reasons that a chat
    client gets unchanged."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    FUNCTION_CALL = "function_call"
    # The backend has ended the choice without a reason. A chat client gets null, as the interface allows.
    UNSTATED = ""


# The stop reasons of the Messages protocol that are more specific than the members of `Finish`.
EXACT_STOP_REASONS = frozenset({"stop_sequence", "pause_turn", "model_context_window_exceeded"})


class Call(msgspec.Struct, frozen=True):
    """Describes one inference call with all request data for services and backends."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    model: Model
    # The number of completions (`n`), and the output limit of each completion in tokens.
    choices: int
    output_tokens_max: int
    # The field of the chat request in which the client sent the output limit.
    output_limit_field: str
    # Whether the client gets the answer as a stream. A backend may stream in both cases.
    streamed: bool
    prompt: Prompt
    # Whether the request is so large that processing it in one go would block the event loop.
    is_large: bool = False
    # Whether the prompt was sent to the backend's tokenizer before admission, perhaps with turns
    # that were then removed to fit the context.
    tokenizer_asked: bool = False
    # The affinity key, by which calls with a common beginning prefer the same replica. It is a hash
    # and does not reveal the client's text.
    affinity: bytes | None = None
    # The policies that the request names, in addition to those attached to the project. The request may
    # repeat a policy.
    policy_ids: tuple[str, ...] = ()
    # Beta flags of the Messages protocol as the client sent them, each once.
    beta_flags: tuple[str, ...] = ()
    # The client's `traceparent` header, unchanged, and the `traceparent` for the backend; empty if
    # the backend gets none.
    incoming_trace: bytes | None = None
    outgoing_trace: bytes = b""

    @property
    def supported_beta_flags(self) -> list[str]:
        """Returns the client's beta flags that the settings allow for the model's backend."""
        return [flag for flag in self.beta_flags if flag in self.model.messages.beta_flags]

    @property
    def output_tokens_held(self) -> int:
        """Returns the maximum tokens of each completion, for the hold (the amount reserved before
        the call). If the client's limit does not apply to all output, the answer may have as many
        tokens as the model can write."""
        if self.model.exceeds_output_limit:
            return max(self.output_tokens_max, self.model.max_output_length)
        return self.output_tokens_max

    @property
    def asked_service_tier(self) -> str | None:
        """Returns the service tier that the request names; None if it names no tier."""
        for option in self.prompt.options:
            # With "auto" the backend may choose any tier, as without a tier.
            if option.name == "service_tier" and option.value != "auto":
                return str(option.value)
        return None

    @property
    def writes_cache_for_1h(self) -> bool:
        """Tells whether cache writes without a reported lifetime are charged at the price for an
        hour. Two conditions are needed. First, a cache mark (`cache_control`) in the request asks
        for more than five minutes or, if the request has no marks, the model's settings ask for an
        hour. Second, the price for an hour is not lower than the price for five minutes."""
        pricing, marks = self.model.pricing, self.prompt.cache_marks()
        asks_for_1h = (
            any(mark.get("ttl") not in _FIVE_MINUTES for mark in marks)
            if marks
            else self.model.messages.caching is PromptCaching.ONE_HOUR
        )
        return asks_for_1h and pricing.input_cache_write_1h >= pricing.input_cache_write


class ToolCallPiece(msgspec.Struct, frozen=True, gc=False):
    """Represents a piece of the tool call with the number `index`. The call's `id` and `name` are
    never split between pieces. Its arguments are the `arguments` of all its pieces, joined."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    # Whether the tool is custom. Its arguments are arbitrary text, not JSON.
    custom: bool = False


class FunctionCallPiece(msgspec.Struct, frozen=True, gc=False):
    """Represents a piece of a legacy function call."""

    name: str | None = None
    arguments: str = ""


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """Represents a citation of a web page, for the text from `start_index` to `end_index`. The
    positions count the characters of the whole text of the choice, however many items or blocks the
    text is divided into."""

    url: str
    title: str
    start_index: int
    end_index: int


@final
class Opened(msgspec.Struct, frozen=True, gc=False):
    """Reports that the backend has begun to answer. Each answer starts with exactly one
    `Opened`."""

    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: msgspec.Raw | None = None


@final
class Delta(msgspec.Struct, frozen=True, gc=False):
    """Adds a piece to one choice (completion). An answer that is not streamed has one delta per
    choice."""

    choice: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    function_call: FunctionCallPiece | None = None
    annotations: tuple[Annotation, ...] = ()
    # The log-probabilities in the form of the chat protocol, as the backend wrote them.
    logprobs: msgspec.Raw | None = None
    # Set in the last delta of a choice. `finish` may be any word of the provider. `stop_reason` is one
    # of `EXACT_STOP_REASONS`, and `stop_sequence` is the stop text of the request that ended the
    # answer, if known.
    finish: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    # Encrypted reasoning that only the backend can read. The client returns it with the next
    # request.
    sealed_reasoning: str | None = None
    # The URLs of images that follow the text, usually `data:` URLs with the content.
    images: tuple[str, ...] = ()
    # A block of a web search, as the provider wrote it. Only for clients that can read such blocks.
    search_block: SearchBlock | None = None


# Reads the fields of a delta that add something other than text. Most deltas have none of them.
other_fields = attrgetter(
    *("reasoning", "refusal", "tool_calls", "function_call", "annotations", "logprobs"),
    *("sealed_reasoning", "images", "search_block"),
)


@final
class UsageReport(msgspec.Struct, frozen=True, gc=False):
    """Contains one usage report of the backend; an answer may have several. If a count in the
    report is impossible, `usage` is None and `impossible` contains the report unchanged."""

    usage: ReportedUsage | None
    impossible: FreeObject | None = None


Event: TypeAlias = Opened | Delta | UsageReport
# The events of one network read. They are delivered together, because each delivery takes time.
Batch: TypeAlias = Sequence[Event]
