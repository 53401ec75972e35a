"""Encodes a prompt as chat fields. A chat client's own fields (`Prompt.written`) are sent
instead."""

from collections.abc import Iterable, Sequence

import msgspec

from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import (
    AllowedFunctions,
    Audio,
    Content,
    File,
    FreeObject,
    FunctionTool,
    Image,
    Media,
    NamedFunction,
    Prompt,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
    Turn,
    Video,
    WebSearch,
)
from tollkeeper.providers.request_fields import (
    add_options,
    present,
    refuse_forced_search,
    sent_filename,
)

_CACHE_MARK = "cache_control"


def encode_template_input(call: Call, names: Iterable[str]) -> bytes:
    """The model and these fields, for a token count request."""
    prompt, written = call.prompt, call.prompt.written
    body: FreeObject = encoded_fields(prompt) if written is None else dict(written)
    add_options(body, call.model, prompt.options)
    fields = {name: body[name] for name in names if name in body}
    return msgspec.json.encode({"model": call.model.upstream_model, **fields})


def encoded_fields(prompt: Prompt) -> FreeObject:
    """For other clients: what a chat client would have sent."""
    identity = prompt.identity
    fields: FreeObject = {
        "messages": [_message(turn) for turn in prompt.turns],
        "user": identity.short_user,
        "safety_identifier": identity.safety_identifier,
        "metadata": identity.metadata,
        **prompt.sampling.set_fields(),
        **_tool_fields(prompt),
    }
    if prompt.web_search is not None:
        refuse_forced_search(prompt)
        fields["web_search_options"] = _web_search(prompt.web_search)
    if prompt.output_format is not None:
        fields["response_format"] = prompt.output_format.described()
    return present(fields)


def _tool_fields(prompt: Prompt) -> FreeObject:
    functions = prompt.allowed_functions
    if not functions:
        return {}
    return {
        "tools": [_tool(tool) for tool in functions],
        "tool_choice": _tool_choice(prompt.tool_choice),
        "parallel_tool_calls": prompt.parallel_tool_calls,
    }


def _tool(tool: FunctionTool) -> FreeObject:
    """Without the cache mark, which chat servers may reject."""
    definition = tool.described()
    definition.pop(_CACHE_MARK, None)
    return definition


def _tool_choice(requested: ToolChoice | None) -> str | FreeObject | None:
    match None if requested is None else requested.choice:
        case NamedFunction(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedFunctions(mode=mode):
            # Chat servers have no list of allowed functions, so `_tool_fields` sends
            # only those.
            return mode.value
        case ToolMode() as mode:
            return mode.value
    return None


def _web_search(search: WebSearch) -> FreeObject:
    options: FreeObject = dict(search.extra or {})
    if search.context_size is not None:
        options["search_context_size"] = search.context_size
    if search.location is not None:
        options["user_location"] = {
            "type": "approximate",
            "approximate": search.location.set_fields(),
        }
    return options


def _message(turn: Turn) -> FreeObject:
    if turn.role is Role.ASSISTANT:
        return _assistant_message(turn)
    if turn.role is Role.TOOL:
        (result,) = turn.parts
        assert isinstance(result, ToolResult)
        content = _content(result.content)
        return {"role": "tool", "tool_call_id": result.call_id, "content": content}
    parts = [part for part in turn.parts if isinstance(part, Content)]
    message: FreeObject = {"role": turn.role.value, "content": _content(parts)}
    if turn.name is not None:
        message["name"] = turn.name
    return message


def _assistant_message(turn: Turn) -> FreeObject:
    """Reasoning is sent under both names that chat servers read. The protocol has no field for
    sealed reasoning."""
    words = [part.text for part in turn.parts if isinstance(part, Text | Refusal)]
    thoughts = [part.text for part in turn.parts if isinstance(part, Reasoning) and part.text]
    calls = [part.described() for part in turn.parts if isinstance(part, ToolCall)]
    message: FreeObject = {"role": "assistant", "content": _joined(words) if words else None}
    if thoughts:
        message["reasoning"] = message["reasoning_content"] = _joined(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _content(parts: Sequence[Content]) -> str | list[FreeObject]:
    """A string if there's no media, because every chat template accepts it."""
    texts = [part.text for part in parts if not isinstance(part, Media)]
    return _joined(texts) if len(texts) == len(parts) else [_part(part) for part in parts]


def _joined(texts: Iterable[str]) -> str:
    """With line breaks, so words stay apart, as some servers do for the texts of a list."""
    return "\n".join(texts)


def _part(part: Content) -> FreeObject:
    match part:
        case Image():
            source = {"url": part.url}
            if part.detail is not None:
                source["detail"] = part.detail
            return {"type": "image_url", "image_url": source}
        case File():
            filename = sent_filename(part)
            file = {"file_data": part.data, "file_id": part.id, "filename": filename}
            return {"type": "file", "file": present(file)}
        case Audio(url=None):
            return {
                "type": "input_audio",
                "input_audio": {"data": part.data, "format": part.format},
            }
        case Audio():
            return {"type": "audio_url", "audio_url": {"url": part.url}}
        case Video():
            return {"type": "video_url", "video_url": {"url": part.url}}
    return {"type": "text", "text": part.text}
