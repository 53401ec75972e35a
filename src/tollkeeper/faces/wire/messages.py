"""The Messages protocol: calls, token counts and their results."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw

from tollkeeper.http.wire_base import (
    FreeObject,
    LenientRequestObject,
    ModelId,
    OutputLimit,
    ResponseObject,
    StrictRequestObject,
)

# Content blocks and tools are decoded later, by their `type`.
AnyObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


# Of a block or tool. Allows unknown properties, unlike `CacheControl` of the whole request.
class CacheMark(LenientRequestObject):
    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] | None = None


class SystemText(LenientRequestObject):
    text: str
    type: Literal["text"] = "text"
    cache_control: CacheMark | None = None


class MessagesMessage(StrictRequestObject):
    role: Literal["user", "assistant", "system"]
    content: str | list[AnyObject]


class AutoChoice(LenientRequestObject, tag="auto", tag_field="type"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(LenientRequestObject, tag="any", tag_field="type"):
    disable_parallel_tool_use: bool | None = None


class NoChoice(LenientRequestObject, tag="none", tag_field="type"):
    disable_parallel_tool_use: bool | None = None


class ToolChoice(LenientRequestObject, tag="tool", tag_field="type"):
    name: str
    disable_parallel_tool_use: bool | None = None


class ThinkingEnabled(LenientRequestObject, tag="enabled", tag_field="type"):
    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: str | None = None


class ThinkingDisabled(LenientRequestObject, tag="disabled", tag_field="type"):
    display: str | None = None


class ThinkingAdaptive(LenientRequestObject, tag="adaptive", tag_field="type"):
    display: str | None = None


class ThinkingBetweenTools(LenientRequestObject, tag="between_tools", tag_field="type"):
    display: str | None = None


class OutputFormat(StrictRequestObject):
    schema: FreeObject
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(StrictRequestObject):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CacheControl(StrictRequestObject):
    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] | None = None


class TokenCountRequest(StrictRequestObject, kw_only=True):
    model: ModelId
    messages: Annotated[list[MessagesMessage], Meta(min_length=1, max_length=100_000)]
    system: str | list[SystemText] | None = None
    tools: list[AnyObject] | None = None
    tool_choice: AutoChoice | AnyChoice | NoChoice | ToolChoice | None = None
    thinking: (
        ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive | ThinkingBetweenTools | None
    ) = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard", "fast"] | None = None


class Metadata(LenientRequestObject):
    user_id: str | None = None


class MessagesRequest(TokenCountRequest):
    max_tokens: OutputLimit
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    # Asks to shorten the conversation, which the gateway never does. Accepted and ignored.
    context_management: FreeObject | None = None
    # Requests are rejected unless the next three are empty.
    mcp_servers: list[FreeObject] | None = None
    container: FreeObject | str | None = None
    inference_geo: str | None = None


class MessagesQuery(StrictRequestObject):
    # Sent by the beta APIs of client SDKs, without effect.
    beta: Literal["true", "false"] | None = None


class TokenCount(ResponseObject):
    input_tokens: Annotated[int, Meta(ge=0)]


class Block(LenientRequestObject):
    type: str


class MarkedBlock(LenientRequestObject, kw_only=True):
    cache_control: CacheMark | None = None


class TextBlock(MarkedBlock):
    text: str


class ThinkingBlock(LenientRequestObject):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(LenientRequestObject):
    data: str


class ToolUseBlock(LenientRequestObject):
    id: str
    name: str
    input: FreeObject


class ServerToolUseBlock(MarkedBlock):
    id: str
    name: str
    input: FreeObject


class SearchResultsBlock(MarkedBlock):
    tool_use_id: str
    # The results, or an object that says why the search failed.
    content: list[FreeObject] | FreeObject


class ToolResultBlock(MarkedBlock):
    tool_use_id: str
    content: str | list[Raw] | None = None
    is_error: bool | None = None


class Citations(LenientRequestObject):
    enabled: bool | None = None


class SearchResultBlock(MarkedBlock):
    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class Base64Source(LenientRequestObject, tag="base64", tag_field="type"):
    media_type: str
    data: str


class UrlSource(LenientRequestObject, tag="url", tag_field="type"):
    url: str


class FileSource(LenientRequestObject, tag="file", tag_field="type"):
    file_id: str


class PlainTextSource(LenientRequestObject, tag="text", tag_field="type"):
    data: str


class ContentSource(LenientRequestObject, tag="content", tag_field="type"):
    content: str | list[Raw]


class ImageBlock(MarkedBlock):
    source: Base64Source | UrlSource | FileSource


class DocumentBlock(MarkedBlock):
    source: Base64Source | UrlSource | FileSource | PlainTextSource | ContentSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class ToolHead(LenientRequestObject):
    """The properties that identify a tool. The name may have any type here, because only error
    messages contain it."""

    type: str | None = None
    name: Any = None


class CustomTool(MarkedBlock):
    name: Annotated[str, Meta(min_length=1)]
    input_schema: FreeObject
    description: str | None = None
    strict: bool | None = None


class SearchLocation(LenientRequestObject):
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class SearchTool(LenientRequestObject):
    max_uses: Annotated[int, Meta(ge=1)] | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: SearchLocation | None = None


class Message(ResponseObject, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[FreeObject]
    stop_reason: str | None
    stop_sequence: str | None
    usage: FreeObject
