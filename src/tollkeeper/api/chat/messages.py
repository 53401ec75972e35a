"""From the messages of a chat request to the turns of a prompt.

The wire struct has checked types and names. Content parts are free to have more properties than
the interface names, so requests with content parts are decoded once more, with everything in them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from tollkeeper.api.wire import chat as wire
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.prompt import (
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

_ROLES = {role.value: role for role in Role}
_RESULT_ROLES = (Role.TOOL, Role.FUNCTION)
# What each type of part has its content under.
_MEMBERS = {
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
# A part has one kind of content: another kind beside it would be content that nobody counts.
_MEDIA_MEMBERS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file"})


class _LooseMessage(msgspec.Struct):
    content: str | list[FreeObject] | None = None


class _LooseRequest(msgspec.Struct):
    """A request of which only the contents of its messages are read, with everything in them."""

    messages: list[_LooseMessage]


_loose = msgspec.json.Decoder(_LooseRequest)


def read_turns(messages: Sequence[wire.ChatMessage], raw_body: bytes) -> tuple[Turn, ...]:
    loose: list[_LooseMessage] | None = None
    if any(type(message.content) is list for message in messages):
        loose = _loose.decode(raw_body).messages
    turns = []
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        content: tuple[Content, ...]
        if type(message.content) is str:
            content = (Text(message.content),)
            if _is_plain(message):
                turns.append(Turn(_ROLES[message.role], content, message.name, place))
                continue
        elif loose is not None and isinstance(parts := loose[at].content, list):
            content = tuple(
                _content_part(part, f"{place}.content[{number}]")
                for number, part in enumerate(parts)
            )
        else:
            content = ()
        turns.append(_turn(message, content, place))
    return tuple(turns)


def _is_plain(message: wire.ChatMessage) -> bool:
    """A role and its words, as nearly every message is: worth a short way."""
    return (
        message.tool_calls is None
        and message.tool_call_id is None
        and message.reasoning is None
        and message.reasoning_content is None
        and message.function_call is None
        and message.role not in _RESULT_ROLES
    )


def _turn(message: wire.ChatMessage, content: tuple[Content, ...], place: str) -> Turn:
    role = _ROLES[message.role]
    thoughts = _reasoning(message)
    calls = _tool_calls(message, place)
    parts: tuple[Part, ...] = content
    name, call_id, extra = message.name, message.tool_call_id, None
    if role in _RESULT_ROLES:
        parts = (ToolResult(content, call_id, name),)
        name = None
    elif call_id:
        extra = {"tool_call_id": call_id}
    if thoughts or calls:
        parts = (*thoughts, *parts, *calls)
    return Turn(role, parts, name, place, extra)


def _reasoning(message: wire.ChatMessage) -> tuple[Reasoning, ...]:
    """Callers send back what they were given, under one name or the same text under both."""
    said, other = message.reasoning, message.reasoning_content
    thoughts = (said, other if other != said else None)
    return tuple(Reasoning(text) for text in thoughts if text)


def _tool_calls(message: wire.ChatMessage, place: str) -> list[ToolCall]:
    calls = [
        _tool_call(call, f"{place}.tool_calls[{number}]")
        for number, call in enumerate(message.tool_calls or ())
    ]
    if message.function_call is not None:
        name, arguments, extra = _called(message.function_call)
        place = f"{place}.function_call"
        calls.append(ToolCall(None, name, arguments, place, legacy=True, extra=extra))
    return calls


def _tool_call(call: FreeObject, place: str) -> ToolCall:
    """The interface leaves calls free. What is not as the protocol has it is kept beside."""
    extra = dict(call)
    call_id = extra.pop("id", None)
    if call_id is not None and not isinstance(call_id, str):
        extra["id"], call_id = call_id, None
    if extra.get("type") == "function":
        del extra["type"]
    name = arguments = ""
    function = extra.pop("function", None)
    if isinstance(function, dict):
        name, arguments, beside = _called(function)
        if beside:
            extra["function"] = beside
    elif function is not None:
        extra["function"] = function
    return ToolCall(call_id, name, arguments, place, extra=extra or None)


def _called(function: FreeObject) -> tuple[str, str, FreeObject | None]:
    """Name and arguments of a called function, and whatever else there is."""
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
    member = _MEMBERS.get(kind) if isinstance(kind, str) else None
    if member is None:
        if kind is None:
            raise InvalidRequest("A content part has a type.", param=f"{place}.type")
        raise InvalidRequest(
            f"There is no content part of type {kind[:100]!r}.", param=f"{place}.type"
        )
    extra = {
        name: value
        for name, value in part.items()
        if name not in ("type", member) and value is not None
    }
    for name in extra:
        if name in _MEDIA_MEMBERS:
            raise InvalidRequest(
                f"A part of type {kind} has no {name}: one part has one kind of content.",
                param=f"{place}.{name}",
            )
    found = part.get(member)
    match kind:
        case "text":
            return Text(found or "", extra or None)
        case "refusal":
            return Refusal(_text(found, f"{place}.refusal"), extra or None)
        case "thinking":
            return _thought(found, extra, f"{place}.thinking")
    return _media_part(str(kind), found, extra, place)


def _media_part(kind: str, found: Any, extra: FreeObject, place: str) -> Content:
    where = f"{place}.{_MEMBERS[kind]}"
    match kind:
        case "input_audio":
            source = _object(found, where)
            data = _text(source.pop("data", None), f"{where}.data")
            form = _optional_text(source.pop("format", None), f"{where}.format")
            return Audio(data=data, format=form, place=place, extra={**extra, **source} or None)
        case "file":
            source = _object(found, where)
            names = ("file_data", "file_id", "filename")
            given = [_optional_text(source.pop(name, None), f"{where}.{name}") for name in names]
            if given[0] is None and given[1] is None:
                raise InvalidRequest("The content itself is missing.", param=f"{where}.file_data")
            return File(
                data=given[0],
                id=given[1],
                filename=given[2],
                place=place,
                extra={**extra, **source} or None,
            )
    source = {"url": found} if isinstance(found, str) else _object(found, where)
    url = _text(source.pop("url", None), f"{where}.url" if isinstance(found, dict) else where)
    if kind in ("image_url", "input_image"):
        detail = source.pop("detail", None) or extra.pop("detail", None)
        detail = _optional_text(detail, f"{where}.detail")
        return Image(url, detail, place, {**extra, **source} or None)
    beside = {**extra, **source} or None
    if kind == "audio_url":
        return Audio(url=url, place=place, extra=beside)
    return Video(url, place, beside)


def _thought(found: Any, extra: FreeObject, place: str) -> Reasoning:
    """Text, or a list of text parts."""
    if not isinstance(found, list):
        return Reasoning(_text(found, place), extra=extra or None)
    texts, beside = [], []
    for at, part in enumerate(found):
        source = _object(part, f"{place}[{at}]")
        texts.append(_text(source.pop("text", None), f"{place}[{at}].text"))
        if source.get("type") == "text":
            del source["type"]
        if source:
            beside.append(source)
    if beside:
        extra["thinking"] = beside
    return Reasoning("".join(texts), extra=extra or None)


def _object(found: Any, place: str) -> FreeObject:
    if not isinstance(found, dict):
        raise InvalidRequest("The content itself is missing.", param=place)
    return dict(found)


def _text(found: Any, place: str) -> str:
    if not isinstance(found, str):
        raise InvalidRequest("The content itself is missing.", param=place)
    return found


def _optional_text(found: Any, place: str) -> str | None:
    return None if found is None else _text(found, place)
