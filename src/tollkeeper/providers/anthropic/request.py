"""Encodes a call as a Messages request. Rejects calls that the protocol can't represent."""

import base64
import re
from collections.abc import Mapping
from typing import Any

from tollkeeper.core.catalog import Feature
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import (
    File,
    FreeObject,
    FunctionTool,
    Image,
    Media,
    Prompt,
    Reasoning,
    SchemaOutput,
    SearchBlock,
    ToolMode,
    ToolResult,
    Turn,
    WebSearch,
)
from tollkeeper.core.prompt_size import WEB_SEARCHES_MAX
from tollkeeper.providers.cache_marks import Marks
from tollkeeper.providers.claude_thinking import OPTIONS as REASONING_OPTIONS
from tollkeeper.providers.claude_thinking import sealed_objects, thinking_fields
from tollkeeper.providers.conversation import ConversationWithIds
from tollkeeper.providers.inline_media import (
    PDF,
    content_at,
    content_in,
    content_required,
    type_unsupported,
)
from tollkeeper.providers.request_fields import (
    NO_PARAMETERS,
    add_other_options,
    check_detail,
    check_search,
    checked_temperature,
    described_schema,
    offered_functions,
    present,
    refuse_unsupported,
    stop_list,
    tool_choice,
    unsupported_content,
)

# All that models served through this protocol can have.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p", "stop"})
INPUT_MODALITIES = frozenset({"text", "image", "file"})
OUTPUT_MODALITIES = frozenset({"text"})
FEATURES = frozenset(
    {Feature.TOOLS, Feature.STRUCTURED_OUTPUTS, Feature.REASONING, Feature.WEB_SEARCH}
)
_MODES: dict[ToolMode, FreeObject] = {
    ToolMode.NONE: {"type": "none"},
    ToolMode.AUTO: {"type": "auto"},
    ToolMode.REQUIRED: {"type": "any"},
}
_SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": WEB_SEARCHES_MAX}
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PLAIN_TEXT = "text/plain"
_SIGNED_BLOCKS = ("thinking", "redacted_thinking")


class Input(ConversationWithIds):
    call_id_pattern = re.compile(r"[a-zA-Z0-9_-]{1,64}")

    def __init__(self, cache_marks: Marks, *, takes_image_urls: bool) -> None:
        super().__init__()
        self._cache_marks = cache_marks
        self._takes_image_urls = takes_image_urls

    def text_block(self, text: str) -> FreeObject:
        return {"type": "text", "text": text}

    def media_block(self, media: Media) -> FreeObject:
        match media:
            case Image():
                return {"type": "image", "source": self._image_source(media)}
            case File():
                source = _file_source(media)
                return present(
                    {"type": "document", "source": source, "title": media.filename or None}
                )
        raise unsupported_content(media.place)

    def _image_source(self, image: Image) -> FreeObject:
        check_detail(image)
        content = content_at(image.url, image.place)
        if content is None and not self._takes_image_urls:
            raise content_required(image.place)
        if content is None:
            return {"type": "url", "url": image.url}
        if content.media_type not in _IMAGE_TYPES:
            raise type_unsupported(_IMAGE_TYPES, image.place)
        return {"type": "base64", "media_type": content.media_type, "data": content.base64}

    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]:
        return signed_blocks(reasoning)

    def call_block(self, call_id: str, name: str, arguments: FreeObject) -> FreeObject:
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def search_blocks(self, search: SearchBlock) -> list[FreeObject]:
        return self.marked(search.written, search.extra, search.place)

    def result_block(self, result: ToolResult, turn: Turn, content: list[FreeObject]) -> FreeObject:
        block = {
            "type": "tool_result",
            "tool_use_id": self.answered_id(result, turn),
            "content": _plain(content),
            "is_error": result.is_error or None,
        }
        return present(block)

    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        cache_mark = self._cache_marks.read(extra, place)
        return [] if block is None else [{**block, **cache_mark}]


def messages_request(
    call: Call, *, stream: bool, extra: Mapping[str, Any], takes_image_urls: bool
) -> FreeObject:
    prompt = call.prompt
    refuse_unsupported(prompt, sampling=SAMPLING_PARAMETERS, output_modalities=OUTPUT_MODALITIES)
    temperature = checked_temperature(prompt)
    cache_marks = Marks(call.model.messages.caching)
    tools = _tool_fields(prompt, cache_marks)
    conversation = Input(cache_marks, takes_image_urls=takes_image_urls)
    conversation.add(prompt.turns)
    thinking = thinking_fields(call, signed_blocks)
    user = prompt.identity.safety_identifier or prompt.identity.user
    fields: FreeObject = {
        "system": _plain(conversation.system),
        **tools,
        "thinking": thinking.thinking,
        "output_config": present({"effort": thinking.effort, "format": _output_format(prompt)})
        or None,
        "cache_control": cache_marks.automatic(),
        "temperature": temperature,
        "top_p": prompt.sampling.top_p,
        "stop_sequences": stop_list(prompt),
        "metadata": {"user_id": user} if user else None,
    }
    body = present(fields)
    add_other_options(body, call, REASONING_OPTIONS)
    body.update(extra)
    body["model"] = call.model.upstream_model
    body["messages"] = conversation.messages
    body["max_tokens"] = call.output_tokens_max
    body["stream"] = stream
    return body


def _file_source(file: File) -> FreeObject:
    """PDF stays in base64, plain text is decoded."""
    if file.data is None:
        raise content_required(file.place)
    content = content_in(file.data, file.place)
    # Without a type, it's usually PDF.
    is_text = (file.filename or "").lower().endswith((".txt", ".md"))
    media_type = content.media_type or (_PLAIN_TEXT if is_text else PDF)
    if media_type == PDF:
        return {"type": "base64", "media_type": PDF, "data": content.base64}
    if media_type != _PLAIN_TEXT:
        raise type_unsupported((PDF, _PLAIN_TEXT), file.place)
    try:
        text = base64.b64decode(content.base64).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The file is not a text in base64.", param=file.place) from None
    return {"type": "text", "media_type": _PLAIN_TEXT, "data": text}


def signed_blocks(reasoning: Reasoning) -> list[FreeObject]:
    return [block for block in sealed_objects(reasoning) if block.get("type") in _SIGNED_BLOCKS]


def _plain(blocks: list[FreeObject]) -> str | list[FreeObject] | None:
    """A single text becomes a string, which every server of this protocol accepts."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        text: str = blocks[0]["text"]
        return text
    return blocks or None


def _output_format(prompt: Prompt) -> FreeObject | None:
    output = prompt.output_format
    if not isinstance(output, SchemaOutput):
        return None
    return {"type": "json_schema", "schema": described_schema(output)}


def _tool_fields(prompt: Prompt, cache_marks: Marks) -> FreeObject:
    tools = [_tool(tool, cache_marks) for tool in offered_functions(prompt)]
    if prompt.web_search is not None:
        tools.append(_search_tool(prompt.web_search))
    if not tools:
        return {}
    return {"tools": tools, "tool_choice": _tool_choice(prompt)}


def _tool(tool: FunctionTool, cache_marks: Marks) -> FreeObject:
    schema = tool.parameters or {}
    if "properties" not in schema:
        # Some servers of this protocol reject a schema without these fields.
        schema = {**NO_PARAMETERS, **schema}
    definition = {
        "name": tool.name,
        "input_schema": schema,
        "description": tool.description,
        "strict": tool.strict or None,
    }
    # A chat client may set the cache mark in the function (`extra`) or in its tool object
    # (`tool_extra`).
    return {
        **present(definition),
        **cache_marks.read(tool.extra, tool.place),
        **cache_marks.read(tool.tool_extra, tool.place),
    }


def _search_tool(search: WebSearch) -> FreeObject:
    check_search(search)
    tool: FreeObject = dict(_SEARCH_TOOL)
    if search.uses_max is not None:
        tool["max_uses"] = min(search.uses_max, WEB_SEARCHES_MAX)
    if search.location is not None:
        tool["user_location"] = {"type": "approximate", **search.location.set_fields()}
    return tool


def _tool_choice(prompt: Prompt) -> FreeObject | None:
    chosen = tool_choice(prompt, _MODES, lambda name: {"type": "tool", "name": name})
    # The legacy form (`function_call`) can contain only one call.
    single = prompt.parallel_tool_calls is False or prompt.has_legacy_functions_only
    if single and chosen is not _MODES[ToolMode.NONE]:
        return {**(chosen or _MODES[ToolMode.AUTO]), "disable_parallel_tool_use": True}
    return chosen
