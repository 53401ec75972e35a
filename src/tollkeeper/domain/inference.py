"""The types between faces and backends: a `Call`, and the events of its answer.

A face turns a request into a `Call` and encodes the events of the answer. A backend turns the call
into a request of its own and the answer into events. Metering and policies read the same events and
know no protocol. The events are structs without garbage collection (`gc=False`), because a stream
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

# The lifetimes in a mark that are no longer than five minutes. No lifetime is one of them.
_FIVE_MINUTES = (None, "5m")
TEXT, IMAGE = "text", "image"
# What an answer can have, whatever a model writes: the interface has no field for anything else.
OUTPUT_MODALITIES = frozenset({TEXT, IMAGE})


class Finish(StrEnum):
    """Why a choice ended. Other reasons of a backend are passed to the caller unchanged."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    FUNCTION_CALL = "function_call"


# The reasons of the Messages protocol that say more than `Finish` does.
EXACT_STOP_REASONS = frozenset({"stop_sequence", "pause_turn", "model_context_window_exceeded"})


class Call(msgspec.Struct, frozen=True):
    """One inference call with everything that services and backends need of the request."""

    request_id: str
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    model: Model
    # The number of completions (`n`), and the output bound of each.
    choices: int
    output_tokens_max: int
    # The field of a chat request that has the bound: the same one that the caller used.
    output_bound_field: str
    # Whether the caller's answer is a stream. A backend may stream in either case.
    streamed: bool
    prompt: Prompt
    # The request is so large that work on all of it would keep the event loop from others.
    is_large: bool = False
    # The backend's tokenizer has got the prompt, or a longer form of it.
    tokenizer_asked: bool = False
    # The affinity key, a hash; never the caller's own text.
    affinity: bytes | None = None
    # Published policies that the request names, in addition to the attached ones; each once.
    policy_ids: tuple[str, ...] = ()
    # Beta flags of the Messages protocol as the client sent them, each once.
    beta_flags: tuple[str, ...] = ()
    # The caller's `traceparent` as it came, and the one that the backend is sent; empty: none.
    incoming_trace: bytes | None = None
    outgoing_trace: bytes = b""

    @property
    def supported_beta_flags(self) -> list[str]:
        """List the client's beta flags that the model's backend is sent."""
        return [flag for flag in self.beta_flags if flag in self.model.messages.beta_flags]

    @property
    def output_tokens_held(self) -> int:
        """The most that each completion may take. Images, and reasoning that the backend does not
        bound, may take as much as the model writes."""
        model = self.model
        if model.writes_images or (model.reasons and not model.bounds_reasoning):
            return max(self.output_tokens_max, model.max_output_length)
        return self.output_tokens_max

    @property
    def asked_service_tier(self) -> str | None:
        """The service tier that the request names; None if it leaves the tier to the backend."""
        for option in self.prompt.options:
            if option.name == "service_tier":
                return str(option.value)
        return None

    @property
    def writes_cache_for_1h(self) -> bool:
        """Whether cache writes without a stated lifetime are charged as an hour: the request asks for
        an hour somewhere, and the price of an hour is not the lower one. Five minutes are the
        lifetime of a request that names none."""
        pricing, marks = self.model.pricing, self.prompt.cache_marks()
        asked = (
            any(mark.get("ttl") not in _FIVE_MINUTES for mark in marks)
            if marks
            else self.model.messages.caching is PromptCaching.ONE_HOUR
        )
        return asked and pricing.input_cache_write_1h >= pricing.input_cache_write


class ToolCallPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of one tool call. `id` and `name` come once; the `arguments` of all pieces are
    joined."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    # The call of a custom tool. Its arguments are a text of any form, not JSON.
    custom: bool = False


class FunctionCallPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a legacy function call."""

    name: str | None = None
    arguments: str = ""


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """A citation in the text."""

    url: str
    title: str
    start_index: int
    end_index: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """The backend has begun to answer. This is the first event and comes once."""

    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: msgspec.Raw | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What one piece adds to one choice. An answer in one piece has one delta per choice."""

    choice: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    function_call: FunctionCallPiece | None = None
    annotations: tuple[Annotation, ...] = ()
    # The log-probabilities in the form of the chat protocol, as the backend wrote them.
    logprobs: msgspec.Raw | None = None
    # Set in the last delta of a choice. `stop_reason` is the reason in the words of the Messages
    # protocol if they say more, and `stop_sequence` the text that ended the answer, if it is known.
    finish: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    # Reasoning that only its backend can read. The caller sends it back with the next request.
    sealed_reasoning: str | None = None
    # The addresses of images after the text. They have the content in themselves (`data:`) as a rule.
    images: tuple[str, ...] = ()


class UsageReport(msgspec.Struct, frozen=True, gc=False):
    """The backend reported usage, perhaps not for the last time. `usage` is None where the report
    cannot be true; `absurd` has it then, as it came."""

    usage: ReportedUsage | None
    absurd: FreeObject | None = None


Event: TypeAlias = Opened | Delta | UsageReport
# One batch has the events of one network read, so that the cost of delivery is paid once per read.
Batch: TypeAlias = Sequence[Event]
