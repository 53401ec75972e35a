"""Wire types of token counting, whose input has the shape of a Messages request."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw

from tollkeeper.api.wire.base import FreeObject, ModelId, Received, Sent, Tolerant

# Blocks and tools stay raw here; each is decoded later, by its `type`.
AnyObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class SystemText(Tolerant):
    text: str
    type: Literal["text"] = "text"


class MessagesMessage(Received):
    role: Literal["user", "assistant", "system"]
    content: str | list[AnyObject]


class AutoChoice(Tolerant, tag="auto", tag_field="type"):
    pass


class AnyChoice(Tolerant, tag="any", tag_field="type"):
    pass


class NoChoice(Tolerant, tag="none", tag_field="type"):
    pass


class ToolChoice(Tolerant, tag="tool", tag_field="type"):
    name: str


class ThinkingEnabled(Tolerant, tag="enabled", tag_field="type"):
    budget_tokens: Annotated[int, Meta(ge=1024)]


class ThinkingDisabled(Tolerant, tag="disabled", tag_field="type"):
    pass


class ThinkingAdaptive(Tolerant, tag="adaptive", tag_field="type"):
    pass


class ThinkingBetweenTools(Tolerant, tag="between_tools", tag_field="type"):
    pass


class OutputFormat(Received):
    schema: FreeObject
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Received):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CacheControl(Received):
    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] | None = None


class TokenCountRequest(Received):
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


class TokenCountQuery(Received):
    # Clients send it with their beta interfaces. It has no effect.
    beta: Literal["true", "false"] | None = None


class TokenCount(Sent):
    input_tokens: Annotated[int, Meta(ge=0)]


class Block(Tolerant):
    type: str


class TextBlock(Tolerant):
    text: str


class ThinkingBlock(Tolerant):
    thinking: str


class ToolUseBlock(Tolerant):
    id: str
    name: str
    input: FreeObject


class ToolResultBlock(Tolerant):
    tool_use_id: str
    content: str | list[Raw] | None = None


class SearchResultBlock(Tolerant):
    source: str
    title: str
    content: list[TextBlock]


class Base64Source(Tolerant, tag="base64", tag_field="type"):
    media_type: str
    data: str


class UrlSource(Tolerant, tag="url", tag_field="type"):
    url: str


class FileSource(Tolerant, tag="file", tag_field="type"):
    file_id: str


class PlainTextSource(Tolerant, tag="text", tag_field="type"):
    data: str


class ContentSource(Tolerant, tag="content", tag_field="type"):
    content: str | list[Raw]


class ImageBlock(Tolerant):
    source: Base64Source | UrlSource | FileSource


class DocumentBlock(Tolerant):
    source: Base64Source | UrlSource | FileSource | PlainTextSource | ContentSource
    title: str | None = None
    context: str | None = None


class ToolHead(Tolerant):
    """The properties that say what a tool is. Any name is allowed here: it is for messages only."""

    type: str | None = None
    name: Any = None


class CustomTool(Tolerant):
    name: Annotated[str, Meta(min_length=1)]
    input_schema: FreeObject
    description: str | None = None
