"""Turns the messages of a chat request into turns.

`wire.ChatMessage` drops properties of content parts that the interface doesn't list, but clients
may send more and the backend must get them. So with content parts, the contents of all messages are
decoded a second time, with all properties.
"""

from itertools import count, repeat
from operator import attrgetter
from typing import Any

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.prompt import (
    Audio,
    Content,
    File,
    FreeObject,
    Image,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
    Video,
)
from tollkeeper.faces.wire import chat as wire

_ROLES = {role.value: role for role in Role}
_RESULT_ROLES = (Role.TOOL, Role.FUNCTION)
_PLAIN_ROLES = frozenset(_ROLES) - {role.value for role in _RESULT_ROLES}
_CONTENT_PROPERTIES = {
    "text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "image_url": "image_url",
    "input_image": "image_url",
    "input_audio": "input_audio",
    "audio_url": "audio_url",
    "video_url": "video_url",
    "file": "file",
}
# A part may only have its own type's, because the gateway counts one medium per part.
_MEDIA_PROPERTIES = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file"})
# Null has no effect here, in any part.
_NULLABLE_PROPERTIES = frozenset({*_CONTENT_PROPERTIES.values(), "detail"})
# The interface makes a part's type optional. Without it, one of these determines the type.
_TYPE_PROPERTIES = ("text", "image_url")


_LITELLM_FIELD = "provider_specific_fields"


class _LooseMessage(msgspec.Struct):
    """Only the content, with all properties of its parts."""

    content: str | list[FreeObject] | None = None


_role, _content = attrgetter("role"), attrgetter("content")
_PLACE = "messages[{}]".format
# For the first messages, because formatting a place takes longer.
_PLACES = tuple(map(_PLACE, range(64)))
_NO_NAMES = repeat(None)
_TEXT_ONLY = frozenset({str})
_loose_decoder = msgspec.json.Decoder(list[_LooseMessage])


def read_turns(
    messages: list[wire.ChatMessage], raw_messages: msgspec.Raw
) -> tuple[tuple[Turn, ...], tuple[str, ...] | None]:
    """No texts (None) if a message has more than a role and a text, and may need corrections."""
    roles, contents = tuple(map(_role, messages)), tuple(map(_content, messages))
    places = _PLACES if len(messages) <= len(_PLACES) else map(_PLACE, count())
    if (
        # True of most requests, and faster, because the loops run in C.
        _PLAIN_ROLES.issuperset(roles)
        and _TEXT_ONLY.issuperset(map(type, contents))
        and messages == [*map(type(messages[0]), roles, contents)]
    ):
        texts = zip(map(Text, contents))  # tuples of one text each
        typed_roles = map(_ROLES.__getitem__, roles)
        return tuple(map(Turn, typed_roles, texts, _NO_NAMES, places)), contents
    loose: list[_LooseMessage] | None = None
    turns = []
    for at, (message, checked, place) in enumerate(zip(messages, contents, places, strict=False)):
        content: tuple[Content, ...] = ()
        if isinstance(checked, str):
            content = (Text(checked),)
        elif checked is not None:
            loose = loose or _loose_decoder.decode(raw_messages)
            parts = loose[at].content
            assert isinstance(parts, list)
            content = tuple(
                _content_part(part, f"{place}.content[{number}]")
                for number, part in enumerate(parts)
            )
        turns.append(_turn(message, content, place))
    return tuple(turns), None


def _turn(message: wire.ChatMessage, content: tuple[Content, ...], place: str) -> Turn:
    role = _ROLES[message.role]
    reasoning = _reasoning(message)
    calls = _tool_calls(message, place)
    parts: tuple[Part, ...] = content
    name, call_id, extra = message.name, message.tool_call_id, None
    if role in _RESULT_ROLES:
        parts = (ToolResult(content, call_id, name),)
        name = None
    elif call_id:
        extra = {"tool_call_id": call_id}
    if reasoning or calls:
        parts = (*reasoning, *parts, *calls)
    return Turn(role, parts, name, place, extra)


def _reasoning(message: wire.ChatMessage) -> tuple[Reasoning, ...]:
    """Answers have the same reasoning in two fields, and clients send back one or both."""
    first, second = message.reasoning, message.reasoning_content
    texts = (first, second if second != first else None)
    return tuple(Reasoning(text) for text in texts if text)


def _tool_calls(message: wire.ChatMessage, place: str) -> list[ToolCall]:
    calls = [
        _tool_call(call, f"{place}.tool_calls[{number}]")
        for number, call in enumerate(message.tool_calls or ())
    ]
    if message.function_call is not None:
        name, arguments, extra = _function_call(message.function_call)
        place = f"{place}.function_call"
        calls.append(ToolCall(None, name, arguments, place, legacy=True, extra=extra))
    return calls


def without_client_fields(messages: msgspec.Raw) -> msgspec.Raw:
    """`model_id` is only in this gateway's API, and LiteLLM's SDK adds `provider_specific_fields`
    to messages (if the operator accepts it) and to tool calls."""
    decoded = msgspec.json.decode(messages, type=list[dict[str, msgspec.Raw]])
    for message in decoded:
        message.pop("model_id", None)
        message.pop(_LITELLM_FIELD, None)
        if "tool_calls" in message:
            calls: list[FreeObject] | None = msgspec.json.decode(message["tool_calls"])
            cleaned = [_without_litellm_field(call) for call in calls or ()]
            message["tool_calls"] = msgspec.Raw(msgspec.json.encode(cleaned))
    return msgspec.Raw(msgspec.json.encode(decoded))


def has_client_fields(message: wire.ChatMessage) -> bool:
    return (
        message.model_id is not msgspec.UNSET
        or (
            isinstance(message, wire.ReplayedMessage)
            and message.provider_specific_fields is not msgspec.UNSET
        )
        or any(
            _LITELLM_FIELD in call or _LITELLM_FIELD in _object_or_empty(call.get("function"))
            for call in message.tool_calls or ()
        )
    )


def has_untyped_parts(message: wire.ChatMessage) -> bool:
    content = message.content
    return type(content) is list and any(part.type is None for part in content)


def with_part_types(messages: msgspec.Raw) -> msgspec.Raw:
    """Most backends require a type in every content part."""
    decoded = msgspec.json.decode(messages, type=list[dict[str, msgspec.Raw]])
    for message in decoded:
        content = message.get("content")
        if content is None or not bytes(content).startswith(b"["):
            continue
        parts = msgspec.json.decode(content, type=list[FreeObject])
        typed = [{**part, "type": part.get("type") or _implied_type(part)} for part in parts]
        message["content"] = msgspec.Raw(msgspec.json.encode(typed))
    return msgspec.Raw(msgspec.json.encode(decoded))


def _implied_type(part: FreeObject) -> str | None:
    types = [name for name in _TYPE_PROPERTIES if part.get(name) is not None]
    return types[0] if len(types) == 1 else None


def _without_litellm_field(call: FreeObject) -> FreeObject:
    cleaned = {name: value for name, value in call.items() if name != _LITELLM_FIELD}
    function = cleaned.get("function")
    if isinstance(function, dict) and _LITELLM_FIELD in function:
        cleaned["function"] = {
            name: value for name, value in function.items() if name != _LITELLM_FIELD
        }
    return cleaned


def _object_or_empty(value: object) -> FreeObject:
    return value if isinstance(value, dict) else {}


def _tool_call(call: FreeObject, place: str) -> ToolCall:
    """The interface accepts any object. `extra` gets what OpenAI's chat protocol doesn't define."""
    extra = _without_litellm_field(call)
    call_id = extra.pop("id", None)
    if call_id is not None and not isinstance(call_id, str):
        extra["id"], call_id = call_id, None
    if extra.get("type") == "function":
        del extra["type"]
    name = arguments = ""
    function = extra.pop("function", None)
    if isinstance(function, dict):
        name, arguments, function_extra = _function_call(function)
        if function_extra:
            extra["function"] = function_extra
    elif function is not None:
        extra["function"] = function
    return ToolCall(call_id, name, arguments, place, extra=extra or None)


def _function_call(function: FreeObject) -> tuple[str, str, FreeObject | None]:
    extra = dict(function)
    name, arguments = extra.get("name"), extra.get("arguments")
    if isinstance(name, str):
        del extra["name"]
    if isinstance(arguments, str):
        del extra["arguments"]
    return (
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, str) else "",
        extra or None,
    )


def _content_part(part: FreeObject, place: str) -> Content:
    kind = part.get("type")
    if kind is None:
        kind = _implied_type(part)
    content_property = _CONTENT_PROPERTIES.get(kind) if isinstance(kind, str) else None
    if content_property is None:
        if kind is None:
            raise InvalidRequest(
                "A content part needs a type, or either a text or an image_url.",
                param=f"{place}.type",
            )
        raise InvalidRequest(
            f"There is no content part of type {kind[:100]!r}.", param=f"{place}.type"
        )
    extra = {
        name: value
        for name, value in part.items()
        if name not in ("type", content_property)
        and not (value is None and name in _NULLABLE_PROPERTIES)
    }
    for name in extra:
        if name in _MEDIA_PROPERTIES:
            raise InvalidRequest(
                f"A part of type {kind} cannot have {name}: send {name} in a separate part.",
                param=f"{place}.{name}",
            )
    content = part.get(content_property)
    match kind:
        case "text":
            return Text(content or "", extra or None, place)
        case "refusal":
            return Refusal(_text(content, f"{place}.refusal"), extra or None, place)
        case "thinking":
            return _thinking_part(content, extra, place)
    return _media_part(str(kind), content, extra, place)


def _media_part(kind: str, content: Any, extra: FreeObject, place: str) -> Content:
    content_place = f"{place}.{_CONTENT_PROPERTIES[kind]}"
    match kind:
        case "input_audio":
            source = _object(content, content_place)
            data = _text(source.pop("data", None), f"{content_place}.data")
            format_name = _optional_text(source.pop("format", None), f"{content_place}.format")
            return Audio(
                data=data, format=format_name, place=place, extra=_joined(extra, source, kind)
            )
        case "file":
            return _file_part(_object(content, content_place), extra, place, content_place)
    source = {"url": content} if isinstance(content, str) else _object(content, content_place)
    url_place = f"{content_place}.url" if isinstance(content, dict) else content_place
    url = _text(source.pop("url", None), url_place)
    if kind in ("image_url", "input_image"):
        detail = source.pop("detail", None) or extra.pop("detail", None)
        detail = _optional_text(detail, f"{content_place}.detail")
        return Image(url, detail, place, _joined(extra, source, kind))
    all_extra = _joined(extra, source, kind)
    if kind == "audio_url":
        return Audio(url=url, place=place, extra=all_extra)
    return Video(url, place, all_extra)


def _joined(extra: FreeObject, source: FreeObject, kind: str) -> FreeObject | None:
    """If both have a property of the same name, `source` stays separate, so neither is lost."""
    if extra.keys() & source.keys():
        return {**extra, _CONTENT_PROPERTIES[kind]: source}
    return {**extra, **source} or None


def _file_part(source: FreeObject, extra: FreeObject, place: str, content_place: str) -> File:
    data, file_id, filename = (
        _optional_text(source.pop(name, None), f"{content_place}.{name}")
        for name in ("file_data", "file_id", "filename")
    )
    if data is None and file_id is None:
        raise InvalidRequest("The file's content is missing.", param=f"{content_place}.file_data")
    all_extra = _joined(extra, source, "file")
    return File(data=data, id=file_id, filename=filename, place=place, extra=all_extra)


def _thinking_part(content: Any, extra: FreeObject, place: str) -> Reasoning:
    """The content is a text or a list of text parts."""
    if not isinstance(content, list):
        text = _text(content, f"{place}.thinking")
        return Reasoning(text, extra=extra or None, place=place)
    texts, extra_of_parts = [], []
    for at, part in enumerate(content):
        source = _object(part, f"{place}.thinking[{at}]")
        texts.append(_text(source.pop("text", None), f"{place}.thinking[{at}].text"))
        if source.get("type") == "text":
            del source["type"]
        if source:
            extra_of_parts.append(source)
    if extra_of_parts:
        extra["thinking"] = extra_of_parts
    return Reasoning("".join(texts), extra=extra or None, place=place)


def _object(value: Any, place: str) -> FreeObject:
    if not isinstance(value, dict):
        raise InvalidRequest("The content is missing or not an object.", param=place)
    return dict(value)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest("The content is missing or not a string.", param=place)
    return value


def _optional_text(value: Any, place: str) -> str | None:
    return None if value is None else _text(value, place)
