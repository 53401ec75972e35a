"""Chat completions, with the fields of the interface."""

from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from tollkeeper.http.wire_base import (
    FreeObject,
    LenientRequestObject,
    ModelId,
    OutputLimit,
    Penalty,
    PolicyIds,
    ResponseObject,
    StrictRequestObject,
)

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultracode"]
Verbosity = Literal["low", "medium", "high"]
# Handlers reject true, so that the error can tell the client why.
OnlyFalse = Annotated[bool, Meta(extra_json_schema={"const": False})]


class ContentPart(LenientRequestObject):
    type: str | None = None
    text: str | None = None
    image_url: Any = None


class ChatMessage(StrictRequestObject):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[FreeObject] | None = None
    function_call: FreeObject | None = None
    model_id: Annotated[str, Meta(min_length=1, max_length=256)] | msgspec.UnsetType = msgspec.UNSET


_content = attrgetter("content")


class StreamOptions(StrictRequestObject):
    include_usage: bool | None = None


class Reasoning(StrictRequestObject):
    enabled: bool | None = None
    effort: ReasoningEffort | None = None
    max_tokens: OutputLimit | None = None
    exclude: bool | None = None


class TextFormat(StrictRequestObject, tag="text", tag_field="type"):
    pass


class JsonObjectFormat(StrictRequestObject, tag="json_object", tag_field="type"):
    pass


class JsonSchema(StrictRequestObject):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    schema: FreeObject
    description: Annotated[str, Meta(max_length=2048)] | None = None
    strict: bool | None = None


class JsonSchemaFormat(StrictRequestObject, tag="json_schema", tag_field="type"):
    json_schema: JsonSchema


class ChatRequest(StrictRequestObject):
    # Error messages for fields of another protocol, which clients send here by mistake.
    hints: ClassVar[dict[str, str]] = {
        "input": "This is a body of the Responses protocol: send it to /v1/responses, or send the "
        "conversation in `messages`.",
    }

    model: ModelId
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    policy_ids: PolicyIds = []
    stream: bool = False
    max_tokens: OutputLimit | None = None
    max_completion_tokens: OutputLimit | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    thinking: bool | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    structuredOutputs: bool | msgspec.UnsetType = msgspec.UNSET  # noqa: N815
    tools: list[FreeObject] | None = None
    tool_choice: Literal["none", "auto", "required"] | FreeObject | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FreeObject] | None = None
    function_call: Literal["none", "auto"] | FreeObject | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    modalities: list[str] | None = None
    verbosity: Verbosity | None = None
    audio: FreeObject | None = None
    prediction: FreeObject | None = None
    metadata: FreeObject | None = None
    store: OnlyFalse = False
    service_tier: str | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    web_search_options: FreeObject | None = None
    cache_salt: str | None = None

    @property
    def message_members(self) -> int:
        """Roles and contents. The messages' JSON has at least this many different members."""
        contents = [*map(_content, self.messages)]
        return 2 * len(contents) - contents.count(None)


class ReplayedMessage(ChatMessage):
    """A message that may be an answer as LiteLLM's SDK stores it. The SDK copies additional properties
    of an answer into the last field. The answer has the same properties under their own names, so the
    field is dropped."""

    provider_specific_fields: FreeObject | msgspec.UnsetType | None = msgspec.UNSET


class ReplayingChatRequest(ChatRequest):
    """Replaces `ChatRequest` if the operator has set `accept_provider_specific_fields`."""

    messages: Annotated[list[ReplayedMessage], Meta(min_length=1)]  # type: ignore[assignment]


class UrlCitation(ResponseObject):
    url: str
    title: str
    start_index: Annotated[int, Meta(ge=0)]
    end_index: Annotated[int, Meta(ge=0)]


class Annotation(ResponseObject):
    type: Literal["url_citation"]
    url_citation: UrlCitation


class AnswerMessage(ResponseObject, omit_defaults=True):
    """The message of an answer. Null fields are omitted, because clients send the message back in their next
    request, in which some properties (such as `refusal`) are not allowed."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[FreeObject] | None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[FreeObject] | None = None
    function_call: FreeObject | None = None
    annotations: list[Annotation] | None = None


class ChatChoice(ResponseObject):
    index: int
    message: AnswerMessage
    logprobs: Any
    finish_reason: str | None


PromptDetails = dict[str, int | dict[str, int] | None]
# The backend's value, if it has this form.
PromptLogprobs = Annotated[
    Any,
    Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": ["object", "null"]}}),
]


class ChatUsage(ResponseObject):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: dict[str, int | None] | None = None


class ChatCompletion(ResponseObject, omit_defaults=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage | None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: PromptLogprobs = None
