"""A Responses request: the interface's fields, and later ones that clients send."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, field

from tollkeeper.faces.wire.chat import (
    JsonObjectFormat,
    OnlyFalse,
    ReasoningEffort,
    TextFormat,
    Verbosity,
)
from tollkeeper.http.wire_base import (
    FreeObject,
    LenientRequestObject,
    ModelId,
    OutputLimit,
    Penalty,
    PolicyIds,
    StrictRequestObject,
)

Include = Literal[
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority"]
SummaryKind = Literal["auto", "concise", "detailed"]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
# The gateway stores no objects, so references must be null. `Any` lets the error explain that.
NotStored = Annotated[Any, Meta(extra_json_schema={"type": "null"})]
# Items and tools are decoded later, by their `type`.
AnyObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class ResponsesReasoning(StrictRequestObject):
    effort: ReasoningEffort | None = None
    summary: SummaryKind | None = None
    generate_summary: SummaryKind | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ResponsesJsonSchemaFormat(StrictRequestObject, tag="json_schema", tag_field="type"):
    """A format as in chat, but without the nested `json_schema` object."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    schema: FreeObject
    description: Annotated[str, Meta(max_length=2048)] | None = None
    strict: bool | None = None


class ResponsesText(StrictRequestObject):
    format: TextFormat | JsonObjectFormat | ResponsesJsonSchemaFormat | None = None
    verbosity: Verbosity | None = None


class ResponsesStreamOptions(StrictRequestObject):
    include_obfuscation: bool | None = None


class PromptCacheOptions(StrictRequestObject):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ImageOptions(StrictRequestObject):
    context_compression: Literal["auto", "enabled", "disabled"] | None = None


class ResponsesRequest(StrictRequestObject):
    model: ModelId
    input: str | Annotated[list[AnyObject], Meta(min_length=1)]
    policy_ids: PolicyIds = []
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: OutputLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    tools: list[AnyObject] | None = None
    tool_choice: Literal["none", "auto", "required"] | FreeObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    include: list[Include] | None = None
    reasoning: ResponsesReasoning | None = None
    text: ResponsesText | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    store: OnlyFalse | None = None
    background: OnlyFalse | None = None
    previous_response_id: NotStored = None
    conversation: NotStored = None
    prompt: NotStored = None
    # Published after the interface was written. Values with an effect are rejected, except for
    # `prompt_cache_options` that the model declares, and `client_metadata`.
    context_management: list[FreeObject] | None = None
    moderation: FreeObject | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    access_programs: FreeObject | None = None
    image: ImageOptions | None = None
    # For the client itself, for example Codex CLI. The model doesn't get it.
    client_metadata: FreeObject | None = None


class ItemType(LenientRequestObject):
    """The properties that identify the type of an item. A message may have only a role and no type."""

    type: str | None = None
    role: str | None = None


class ToolHead(LenientRequestObject):
    """The properties that identify a tool. The name may have any type here, because only error
    messages contain it."""

    type: str | None = None
    name: Any = None


class InputText(LenientRequestObject, tag="input_text", tag_field="type"):
    text: str


class EchoedText(LenientRequestObject, tag="output_text", tag_field="type"):
    text: str


class EchoedRefusal(LenientRequestObject, tag="refusal", tag_field="type"):
    refusal: str


class InputImage(LenientRequestObject, tag="input_image", tag_field="type"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(LenientRequestObject, tag="input_file", tag_field="type"):
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


InputPart = InputText | EchoedText | EchoedRefusal | InputImage | InputFile


class InputMessage(LenientRequestObject):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]


class EchoedFunctionCall(LenientRequestObject):
    call_id: Annotated[str, Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1)]
    arguments: str
    # Of the namespace tool that has the function.
    namespace: Annotated[str, Meta(min_length=1)] | None = None


class FunctionCallOutput(LenientRequestObject):
    call_id: Annotated[str, Meta(min_length=1)]
    output: str | list[InputPart]


class ReasoningPart(LenientRequestObject):
    text: str


class EchoedReasoning(LenientRequestObject):
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None


class FunctionTool(StrictRequestObject, tag="function", tag_field="type"):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None
    # Published after the interface was written, and chat has no equivalent: an effect gets 501.
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    output_schema: FreeObject | None = None
    async_: bool | None = field(name="async", default=None)


class NamespaceTool(StrictRequestObject, tag="namespace", tag_field="type"):
    """A named group of functions. Each function is decoded later."""

    name: Annotated[str, Meta(min_length=1)]
    tools: list[AnyObject]
    description: str | None = None


class UserLocation(StrictRequestObject):
    type: Literal["approximate"] | None = None
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchTool(StrictRequestObject):
    type: str
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None
    filters: FreeObject | None = None
    external_web_access: bool | None = None
    search_content_types: list[str] | None = None


class NamedTool(LenientRequestObject):
    """A tool in `tool_choice`. A function or namespace is identified by its name, any other tool only
    by its type."""

    type: str
    name: str | None = None
    namespace: str | None = None


ALLOWED_TOOLS_MODE: Literal["auto"] = "auto"


class AllowedTools(StrictRequestObject):
    type: Literal["allowed_tools"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]
    mode: Literal["auto", "required"] = ALLOWED_TOOLS_MODE
