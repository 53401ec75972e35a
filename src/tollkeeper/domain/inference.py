"""Defines the types between faces and backends: a `Call`, and the events of its answer.

A face turns a request into a `Call` and encodes the events of the answer. A backend turns the call
into its own request and the answer into events. Metering and policies read the same events and know
no protocol. The events are structs without garbage collection (`gc=False`), because a stream
creates one for every piece.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.messages_behavior import PromptCaching
from tollkeeper.domain.prompt import FreeObject, Prompt
from tollkeeper.domain.usage import ReportedUsage

# Cache lifetimes of at most five minutes. A missing lifetime is one of them.
_FIVE_MINUTES = (None, "5m")
TEXT, IMAGE = "text", "image"
# The possible content of an answer, whatever a model writes: the interface has no field for other
# content.
OUTPUT_MODALITIES = frozenset({TEXT, IMAGE})


class Finish(StrEnum):
    """Names why a choice ended. Other reasons of a backend are passed to the client unchanged."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    FUNCTION_CALL = "function_call"


# The reasons of the Messages protocol that are more specific than `Finish`.
EXACT_STOP_REASONS = frozenset({"stop_sequence", "pause_turn", "model_context_window_exceeded"})


class Call(msgspec.Struct, frozen=True):
    """Describes one inference call with all request data for services and backends."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    model: Model
    # The number of completions (`n`), and the output limit of each.
    choices: int
    output_tokens_max: int
    # The field of a chat request that contains the limit: the one that the client used.
    output_bound_field: str
    # Whether the client's answer is a stream. A backend may stream in either case.
    streamed: bool
    prompt: Prompt
    # Whether the request is so large that processing it at once would block the event loop.
    is_large: bool = False
    # Whether the backend's tokenizer has received the prompt, or a longer form of it.
    tokenizer_asked: bool = False
    # The affinity key, a hash; never the client's own text.
    affinity: bytes | None = None
    # Published policies that the request names, in addition to the attached ones; each once.
    policy_ids: tuple[str, ...] = ()
    # Beta flags of the Messages protocol as the client sent them, each once.
    beta_flags: tuple[str, ...] = ()
    # The client's `traceparent`, unchanged, and the one for the backend; empty for none.
    incoming_trace: bytes | None = None
    outgoing_trace: bytes = b""

    @property
    def supported_beta_flags(self) -> list[str]:
        """Lists the client's beta flags that are forwarded to the model's backend."""
        return [flag for flag in self.beta_flags if flag in self.model.messages.beta_flags]

    @property
    def output_tokens_held(self) -> int:
        """Returns the maximum tokens of each completion. Images, and reasoning that the backend
        does not limit, may take as much as the model can write."""
        model = self.model
        if model.writes_images or (model.reasons and not model.bounds_reasoning):
            return max(self.output_tokens_max, model.max_output_length)
        return self.output_tokens_max

    @property
    def asked_service_tier(self) -> str | None:
        """Returns the service tier that the request names; None if it leaves the tier to the
        backend."""
        for option in self.prompt.options:
            if option.name == "service_tier":
                return str(option.value)
        return None

    @property
    def writes_cache_for_1h(self) -> bool:
        """Tells whether cache writes without a stated lifetime are charged as an hour: the request
        asks for an hour somewhere, and an hour is not cheaper. A request that names no lifetime
        gets five minutes."""
        pricing, marks = self.model.pricing, self.prompt.cache_marks()
        asked = (
            any(mark.get("ttl") not in _FIVE_MINUTES for mark in marks)
            if marks
            else self.model.messages.caching is PromptCaching.ONE_HOUR
        )
        return asked and pricing.input_cache_write_1h >= pricing.input_cache_write


class ToolCallPiece(msgspec.Struct, frozen=True, gc=False):
    """Represents a piece of one tool call. `id` and `name` come once; the `arguments` of all pieces are
    joined."""

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
    """Represents a citation in the text."""

    url: str
    title: str
    start_index: int
    end_index: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """Reports that the backend has begun to answer. This is the first event and comes once."""

    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: msgspec.Raw | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Adds one piece to one choice. An answer in one piece has one delta per choice."""

    choice: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    function_call: FunctionCallPiece | None = None
    annotations: tuple[Annotation, ...] = ()
    # The log-probabilities in the form of the chat protocol, as the backend wrote them.
    logprobs: msgspec.Raw | None = None
    # Set in the last delta of a choice. `stop_reason` is the Messages protocol's reason if it is
    # more specific, and `stop_sequence` the text that ended the answer, if known.
    finish: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    # Reasoning that only its backend can read. The client returns it with the next request.
    sealed_reasoning: str | None = None
    # The addresses of images after the text, usually with the content inside (`data:`).
    images: tuple[str, ...] = ()


class UsageReport(msgspec.Struct, frozen=True, gc=False):
    """Reports usage from the backend, perhaps not for the last time. If the report cannot be true,
    `usage` is None and `absurd` contains it unchanged."""

    usage: ReportedUsage | None
    absurd: FreeObject | None = None


Event: TypeAlias = Opened | Delta | UsageReport
# One batch has the events of one network read, so that the cost of delivery is paid once per read.
Batch: TypeAlias = Sequence[Event]
