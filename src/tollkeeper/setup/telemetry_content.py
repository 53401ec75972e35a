"""Encodes prompts and answers as span attributes in the format of OpenTelemetry's GenAI conventions, up to a
size. Only if an operator has opted in.

Left out on purpose: the bytes of media, the queries of URLs (which may have signatures), encrypted reasoning,
and properties that our API doesn't define. Of a tool that isn't a function only type and name, because the
rest may have credentials. What looks like an API key of this gateway is redacted.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tollkeeper.core.inference import Batch, Delta, Finish
from tollkeeper.core.prompt import (
    Audio,
    File,
    FunctionTool,
    Image,
    Media,
    Part,
    Prompt,
    Reasoning,
    Refusal,
    Role,
    SearchBlock,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    Video,
)
from tollkeeper.setup import telemetry_names as names
from tollkeeper.tenants.keys import KEY_LENGTH, redact_keys

# Braces, field names and punctuation.
_OBJECT_BYTES: Final = 96
# Of the size limit, in eighths. Input messages may use what the others leave.
_INSTRUCTIONS_SHARE: Final = 1
_TOOLS_SHARE: Final = 1
_OUTPUT_SHARE: Final = 3
_INSTRUCTION_ROLES: Final = (Role.SYSTEM, Role.DEVELOPER)
# Those with another name in the conventions. A choice that hasn't ended is an error.
_FINISH_NAMES: Final = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    Finish.UNSTATED: "stop",
    None: "error",
}

_Object = dict[str, Any]
P = TypeVar("P")


class _Budget:
    """The bytes of JSON that an attribute may still use."""

    def __init__(self, limit: int) -> None:
        # For the brackets of the list.
        self._left = limit - 2
        self.is_cut = False

    def reserve_object(self) -> bool:
        """False if it doesn't fit."""
        if self._left < _OBJECT_BYTES:
            self.is_cut = True
            return False
        self._left -= _OBJECT_BYTES
        return True

    def fit_text(self, text: str, length: int | None = None) -> str:
        """Redacted and cut, with a marker at the end; empty if not even that fits. `length` is the whole
        text's if `text` is only its beginning."""
        length = len(text) if length is None else length
        if not length:
            return ""
        # More than fits, because a divided key wouldn't be recognised.
        shown = redact_keys(text[: max(self._left, 0) + KEY_LENGTH])
        size = len(msgspec.json.encode(shown))
        if size <= self._left and len(text) == length and length <= self._left + KEY_LENGTH:
            self._left -= size
            return shown
        self.is_cut = True
        marker = f"… [cut: the text has {length} characters]"
        room = self._left - len(msgspec.json.encode(marker))
        if room <= 0:
            return ""
        while (size := len(msgspec.json.encode(shown)) - 2) > room:
            shown = shown[: len(shown) * room // size]
        shown += marker
        self._left -= len(msgspec.json.encode(shown))
        return shown

    def fit_json(self, encoded: str) -> msgspec.Raw | None:
        """Redacted. None if it doesn't fit, because cut JSON would be invalid."""
        redacted = redact_keys(encoded).encode()
        if len(redacted) > self._left:
            self.is_cut = True
            return None
        self._left -= len(redacted)
        return msgspec.Raw(redacted)


class AnswerContent:
    """Collects the beginning while the gateway sends the answer."""

    def __init__(self, limit: int) -> None:
        # In characters; `encoded` limits the bytes.
        self._left = limit * _OUTPUT_SHARE // 8
        self._choices: dict[int, _Choice] = {}
        self._is_cut = False

    def add(self, batch: Batch) -> None:
        for event in batch:
            if type(event) is Delta:
                self._add(event)

    def encoded(self, limit: int) -> tuple[str, bool]:
        """As JSON, and whether a part is missing."""
        budget = _Budget(limit)
        messages: list[_Object] = []
        for _, choice in sorted(self._choices.items()):
            if not budget.reserve_object():
                break
            finish = budget.fit_text(_FINISH_NAMES.get(choice.finish) or choice.finish or "")
            parts = [
                _answer_part(part, budget) for part in _parts_that_fit(choice.ordered(), budget)
            ]
            messages.append({"role": "assistant", "parts": parts, "finish_reason": finish})
        return _encode(messages), budget.is_cut or self._is_cut

    def _add(self, delta: Delta) -> None:
        choice = self._choices.get(delta.choice)
        if choice is None:
            if not self._reserve(_OBJECT_BYTES):
                return
            choice = self._choices[delta.choice] = _Choice()
        if delta.finish is not None:
            choice.finish = delta.finish
        for order, kind, text in (
            (0, "reasoning", delta.reasoning),
            (1, "text", delta.text),
            (2, "refusal", delta.refusal),
        ):
            if text:
                self._extend(choice, (order, 0), kind, text)
        for call in delta.tool_calls:
            self._extend(choice, (3, call.index), "tool_call", call.arguments, call.id, call.name)
        function = delta.function_call
        if function is not None:
            self._extend(choice, (4, 0), "tool_call", function.arguments, None, function.name)

    def _extend(
        self,
        choice: "_Choice",
        key: tuple[int, int],
        kind: str,
        text: str,
        call_id: str | None = None,
        name: str | None = None,
    ) -> None:
        part = choice.parts.get(key)
        if part is None:
            if not self._reserve(_OBJECT_BYTES):
                return
            part = choice.parts[key] = _AnswerPart(kind)
        if call_id and self._reserve(len(call_id)):
            part.call_id = call_id
        if name and self._reserve(len(name)):
            part.name = name
        part.length += len(text)
        if len(text) > self._left:
            self._is_cut = True
            text = text[: max(self._left, 0)]
        if text:
            part.pieces.append(text)
            self._left -= len(text)

    def _reserve(self, size: int) -> bool:
        if size > self._left:
            self._is_cut = True
            return False
        self._left -= size
        return True


class _AnswerPart:
    """One text or tool call."""

    __slots__ = ("call_id", "kind", "length", "name", "pieces")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        # Also of what didn't fit.
        self.length = 0
        self.call_id: str | None = None
        self.name: str | None = None


class _Choice:
    __slots__ = ("finish", "parts")

    def __init__(self) -> None:
        self.finish: str | None = None
        # By the order of its kind, and the index of a tool call.
        self.parts: dict[tuple[int, int], _AnswerPart] = {}

    def ordered(self) -> list[_AnswerPart]:
        return [part for _, part in sorted(self.parts.items())]


def content_attributes(
    prompt: Prompt, answer: AnswerContent, limit: int
) -> dict[str, str | tuple[str, ...]]:
    """At most `limit` bytes in total. `tollkeeper.content.cut` lists what is incomplete."""
    instruction_count = _count_instruction_turns(prompt.turns)
    instructions = [part for turn in prompt.turns[:instruction_count] for part in turn.parts]
    attributes: dict[str, str | tuple[str, ...]] = {}
    cut: list[str] = []
    bytes_left = limit

    def put(name: str, encoded: str, *, is_cut: bool) -> None:
        nonlocal bytes_left
        bytes_left -= len(encoded.encode())
        attributes[name] = encoded
        if is_cut:
            cut.append(name)

    if instructions:
        budget = _Budget(limit * _INSTRUCTIONS_SHARE // 8)
        parts = [_part(part, budget) for part in _parts_that_fit(instructions, budget)]
        put(names.SYSTEM_INSTRUCTIONS, _encode(parts), is_cut=budget.is_cut)
    if prompt.tools or prompt.server_tools:
        budget = _Budget(limit * _TOOLS_SHARE // 8)
        tools = list(_tools(prompt, budget))
        put(names.TOOL_DEFINITIONS, _encode(tools), is_cut=budget.is_cut)
    encoded, is_cut = answer.encoded(limit * _OUTPUT_SHARE // 8)
    put(names.OUTPUT_MESSAGES, encoded, is_cut=is_cut)
    budget = _Budget(bytes_left)
    messages = _messages(prompt.turns[instruction_count:], budget)
    put(names.INPUT_MESSAGES, _encode(messages), is_cut=budget.is_cut)
    if cut:
        attributes[names.CONTENT_CUT] = tuple(cut)
    return attributes


def _count_instruction_turns(turns: Sequence[Turn]) -> int:
    """System and developer turns at the beginning."""
    for number, turn in enumerate(turns):
        if turn.role not in _INSTRUCTION_ROLES:
            return number
    return len(turns)


def _messages(turns: Sequence[Turn], budget: _Budget) -> list[_Object]:
    """From the newest, so the oldest are missing if not all fit."""
    newest_first = []
    for turn in reversed(turns):
        if not budget.reserve_object():
            break
        role = Role.TOOL if turn.role is Role.FUNCTION else turn.role
        message: _Object = {"role": role.value}
        if turn.name:
            message["name"] = budget.fit_text(turn.name)
        message["parts"] = [_part(part, budget) for part in _parts_that_fit(turn.parts, budget)]
        newest_first.append(message)
    return newest_first[::-1]


def _parts_that_fit(parts: Sequence[P], budget: _Budget) -> Iterator[P]:
    """From the first."""
    for part in parts:
        if not budget.reserve_object():
            return
        yield part


def _part(part: Part, budget: _Budget) -> _Object:
    match part:
        case Text():
            return {"type": "text", "content": budget.fit_text(part.text)}
        case Refusal():
            return {"type": "refusal", "content": budget.fit_text(part.text)}
        case Reasoning():
            return {"type": "reasoning", "content": budget.fit_text(part.text)}
        case ToolCall():
            return _tool_call(part.id, part.name, part.arguments, len(part.arguments), budget)
        case ToolResult():
            return _tool_result(part, budget)
        case SearchBlock():
            written = msgspec.json.encode(part.written).decode()
            return {"type": "web_search", "content": budget.fit_text(written)}
        case Image() | Audio() | Video() | File():
            return _media(part, budget)


def _tool_result(part: ToolResult, budget: _Budget) -> _Object:
    identifiers = {"id": budget.fit_text(part.call_id or part.name or "")}
    if len(part.content) == 1 and isinstance(part.content[0], Text):
        response: object = budget.fit_text(part.content[0].text)
    else:
        response = [_part(inner, budget) for inner in _parts_that_fit(part.content, budget)]
    return {"type": "tool_call_response", **identifiers, "response": response}


def _tool_call(
    call_id: str | None, name: str | None, arguments: str, length: int, budget: _Budget
) -> _Object:
    identifiers = {"id": budget.fit_text(call_id or ""), "name": budget.fit_text(name or "")}
    encoded: object = None
    if len(arguments) == length and _is_json(arguments):
        encoded = budget.fit_json(arguments)
    if encoded is None:
        encoded = budget.fit_text(arguments, length)
    return {"type": "tool_call", **identifiers, "arguments": encoded}


def _answer_part(part: _AnswerPart, budget: _Budget) -> _Object:
    text = "".join(part.pieces)
    if part.kind == "tool_call":
        return _tool_call(part.call_id, part.name, text, part.length, budget)
    return {"type": part.kind, "content": budget.fit_text(text, part.length)}


def _media(media: Media, budget: _Budget) -> _Object:
    """The file id or URL; for bytes in the prompt only their encoded length."""
    about: _Object = {"modality": media.modality}
    if isinstance(media, File) and media.id is not None:
        return {"type": "file", **about, "file_id": budget.fit_text(media.id)}
    if media.url is not None and not media.url.startswith("data:"):
        return {"type": "uri", **about, "uri": budget.fit_text(_without_query(media.url))}
    data = media.url or (media.data if isinstance(media, Audio | File) else None) or ""
    return {"type": "blob", **about, "content": "", "omitted_bytes": len(data)}


def _without_query(url: str) -> str:
    """Without user name, query and fragment, which may have secrets."""
    address, cut, _ = url.replace("#", "?", 1).partition("?")
    scheme, separator, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}{'?…' if cut else ''}"


def _tools(prompt: Prompt, budget: _Budget) -> Iterator[_Object]:
    tools: list[Tool | _Object] = [*prompt.tools, *prompt.server_tools]
    for tool in _parts_that_fit(tools, budget):
        if isinstance(tool, FunctionTool):
            yield _function(tool, budget)
            continue
        fields = tool if isinstance(tool, dict) else tool.written
        yield {
            name: budget.fit_text(value)
            for name in ("type", "name")
            if isinstance(value := fields.get(name), str)
        }


def _function(tool: FunctionTool, budget: _Budget) -> _Object:
    function: _Object = {"type": "function", "name": budget.fit_text(tool.name)}
    if tool.description is not None:
        function["description"] = budget.fit_text(tool.description)
    if tool.parameters is not None:
        parameters = budget.fit_json(msgspec.json.encode(tool.parameters).decode())
        if parameters is not None:
            function["parameters"] = parameters
    return function


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _encode(value: list[_Object]) -> str:
    return msgspec.json.encode(value).decode()
