"""Encodes a call as a request of Anthropic's Messages protocol. Rejects calls that the protocol
cannot represent."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tollkeeper.backends.anthropic.media import file_block, image_block
from tollkeeper.backends.anthropic.thinking import is_signed, signed_blocks
from tollkeeper.backends.cache_marks import Marks
from tollkeeper.backends.claude_thinking import is_reasoning_option, thinking_fields
from tollkeeper.backends.conversation import ConversationWithIds
from tollkeeper.backends.options import add_options
from tollkeeper.backends.prompt_content import unsupported_content
from tollkeeper.backends.unsupported import (
    check_search,
    chosen_tool,
    offered_functions,
    refuse_unsupported,
)
from tollkeeper.domain.catalog import Feature
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import (
    File,
    FreeObject,
    FunctionTool,
    Image,
    Media,
    NamedFunction,
    Prompt,
    Reasoning,
    SchemaOutput,
    SearchBlock,
    ToolMode,
    ToolResult,
    Turn,
    WebSearch,
)
from tollkeeper.domain.prompt_size import WEB_SEARCHES_MAX

# The sampling parameters, modalities and features of this protocol. A model that is served through
# this protocol cannot have others.
SAMPLING_PARAMETERS = frozenset({"temperature", "top_p", "stop"})
INPUT_MODALITIES = frozenset({"text", "image", "file"})
OUTPUT_MODALITIES = frozenset({"text"})
FEATURES = frozenset(
    {Feature.TOOLS, Feature.STRUCTURED_OUTPUTS, Feature.REASONING, Feature.WEB_SEARCH}
)
_TEMPERATURE_MAX = 1.0
_NO_PARAMETERS: FreeObject = {"type": "object", "properties": {}}
_MODES = {ToolMode.NONE: "none", ToolMode.AUTO: "auto", ToolMode.REQUIRED: "any"}
_SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": WEB_SEARCHES_MAX}
# The fields that a token count request may have.
_COUNT_FIELDS = frozenset(
    {
        *("model", "messages", "system", "tools", "tool_choice"),
        *("thinking", "output_config", "cache_control"),
    }
)
_encode = msgspec.json.Encoder().encode


class Input(ConversationWithIds):
    """Collects the system text and the messages of one request."""

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
                return image_block(media, takes_urls=self._takes_image_urls)
            case File():
                return file_block(media)
        raise unsupported_content(media.place)

    def reasoning_blocks(self, reasoning: Reasoning) -> list[FreeObject]:
        return signed_blocks(reasoning)

    def call_block(self, call_id: str, name: str, arguments: FreeObject) -> FreeObject:
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def search_blocks(self, search: SearchBlock) -> list[FreeObject]:
        return self.marked(search.written, search.extra, search.place)

    def result_block(self, result: ToolResult, turn: Turn, content: list[FreeObject]) -> FreeObject:
        block: FreeObject = {"type": "tool_result", "tool_use_id": self.answered_id(result, turn)}
        if len(content) == 1 and content[0].keys() == {"type", "text"}:
            block["content"] = content[0]["text"]
        elif content:
            block["content"] = content
        if result.is_error:
            block["is_error"] = True
        return block

    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        """Adds the cache mark (`cache_control`) in `extra`, if any, to the block. Returns a list with this
        block, or an empty list if `block` is None. Checks `extra` in both cases."""
        cache_mark = self._cache_marks.read(extra, place)
        return [] if block is None else [{**block, **cache_mark}]


def messages_request(
    call: Call, *, stream: bool, extra: Mapping[str, Any], takes_image_urls: bool
) -> FreeObject:
    """Builds the body of the request. Always sends the output limit, because the provider requires
    the field."""
    prompt = call.prompt
    refuse_unsupported(prompt, sampling=SAMPLING_PARAMETERS, output_modalities=OUTPUT_MODALITIES)
    _check_temperature(prompt)
    cache_marks = Marks(call.model.messages.caching)
    tools = _tool_fields(prompt, cache_marks)
    conversation = Input(cache_marks, takes_image_urls=takes_image_urls)
    conversation.add(prompt.turns)
    thinking = thinking_fields(call, is_signed)
    output = {"effort": thinking.effort, "format": _output_format(prompt)}
    fields: FreeObject = {
        "system": _system(conversation.system),
        **tools,
        "thinking": thinking.thinking,
        "output_config": {name: value for name, value in output.items() if value is not None},
        "cache_control": cache_marks.automatic(),
        "temperature": prompt.sampling.temperature,
        "top_p": prompt.sampling.top_p,
        "stop_sequences": _stop(prompt.sampling.stop),
        "metadata": _metadata(prompt),
    }
    body = {name: value for name, value in fields.items() if value}
    # A temperature of 0 is valid, but was omitted with the empty fields.
    if prompt.sampling.temperature == 0:
        body["temperature"] = prompt.sampling.temperature
    options = [option for option in prompt.options if not is_reasoning_option(option.name, call)]
    add_options(body, call.model, options)
    body.update(extra)
    body["model"] = call.model.upstream_model
    body["messages"] = conversation.messages
    body["max_tokens"] = call.output_tokens_max
    body["stream"] = stream
    return body


def count_request(call: Call, *, takes_image_urls: bool) -> FreeObject:
    """Builds the body of the token count request."""
    body = messages_request(call, stream=False, extra={}, takes_image_urls=takes_image_urls)
    # Tools that the provider runs. They occur only in requests for token counts.
    if call.prompt.server_tools:
        body["tools"] = [*body.get("tools", ()), *call.prompt.server_tools]
    return {name: value for name, value in body.items() if name in _COUNT_FIELDS}


def _check_temperature(prompt: Prompt) -> None:
    temperature = prompt.sampling.temperature
    if temperature is not None and not 0 <= temperature <= _TEMPERATURE_MAX:
        raise InvalidRequest(
            "The backend accepts only temperatures from 0 to 1.", param="temperature"
        )


def _system(blocks: list[FreeObject]) -> str | list[FreeObject] | None:
    """Returns the value of the field `system`. A single text becomes a string and not a list, because
    every server of this protocol accepts a string."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        text: str = blocks[0]["text"]
        return text
    return blocks or None


def _stop(stop: str | list[str] | None) -> list[str] | None:
    return [stop] if isinstance(stop, str) else stop


def _metadata(prompt: Prompt) -> FreeObject | None:
    user = prompt.identity.safety_identifier or prompt.identity.user
    return {"user_id": user} if user else None


def _output_format(prompt: Prompt) -> FreeObject | None:
    output = prompt.output_format
    if not isinstance(output, SchemaOutput):
        return None
    schema = output.schema
    if output.description is not None and "description" not in schema:
        schema = {**schema, "description": output.description}
    return {"type": "json_schema", "schema": schema}


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
        schema = {**_NO_PARAMETERS, **schema}
    definition: FreeObject = {"name": tool.name, "input_schema": schema}
    if tool.description is not None:
        definition["description"] = tool.description
    if tool.strict:
        definition["strict"] = True
    # A chat client may set the cache mark in the function object (`extra`), or in the tool object
    # that contains the function object (`tool_extra`).
    return {
        **definition,
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
    """Returns the value of the field `tool_choice`. Returns None if the provider's default is right:
    the model decides whether to call tools, and may call several."""
    # An answer in the legacy form (`function_call`) can contain only one call.
    single = prompt.parallel_tool_calls is False or prompt.has_legacy_functions_only
    match chosen_tool(prompt):
        case ToolMode() as mode:
            chosen: FreeObject | None = {"type": _MODES[mode]}
        case NamedFunction(name=name):
            chosen = {"type": "tool", "name": name}
        case None:
            chosen = None
    if single and (chosen is None or chosen["type"] != "none"):
        chosen = {**(chosen or {"type": "auto"}), "disable_parallel_tool_use": True}
    return chosen


def encoded(body: FreeObject) -> bytes:
    return _encode(body)
