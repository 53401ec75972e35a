"""Writes a prompt or an answer as text for the judge."""

import re
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from tollkeeper.domain.inference import Delta
from tollkeeper.domain.prompt import (
    Audio,
    File,
    FreeObject,
    Image,
    Part,
    Prompt,
    Reasoning,
    ToolCall,
    ToolResult,
    Turn,
    Video,
)

# The data of a file in base64 has no readable text, so media parts are shown without it.
_BASE64_FILE = re.compile(r"data:[\w./+-]+;base64,[A-Za-z0-9+/=_-]*|[A-Za-z0-9+/=_-]{256,}")
_ARGUMENTS = "arguments"
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def transcript(prompt: Prompt) -> str:
    """Everything in the prompt that the model reads, in order, each turn under its role. Tools and
    output format come first, because they are usually the same in all calls of an application:
    the texts that are judged then share their beginning."""
    sections = []
    for legacy, title in ((False, "tools"), (True, "functions")):
        described = [tool.described() for tool in prompt.tools if tool.legacy is legacy]
        if described:
            sections.append(section(title, _json(described)))
    if prompt.output_format is not None:
        sections.append(section("response_format", _json(prompt.output_format.described())))
    sections += [section(turn.role, "\n".join(_turn_texts(turn))) for turn in prompt.turns]
    return "\n\n".join(sections)


def section(title: str, text: str) -> str:
    return f"[{title}]\n{text}"


class _Kind(IntEnum):
    """The kinds of text in an answer, in the order of the transcript."""

    REASONING = 0
    REFUSAL = 1
    TEXT = 2
    TOOL_CALL = 3
    FUNCTION_CALL = 4
    ANNOTATION = 5


class AnswerText:
    """Collects the texts of an answer separately by choice, kind and tool call, because pieces of
    two tool calls, or of reasoning and text, may arrive in turn and would be unreadable mixed."""

    def __init__(self) -> None:
        # The key is (choice, kind, number of the tool call, whether the pieces are arguments).
        self._parts: dict[tuple[int, _Kind, int, bool], list[str]] = {}
        self.length = 0

    def add(self, delta: Delta) -> None:
        choice = delta.choice
        self._put((choice, _Kind.REASONING, 0, False), delta.reasoning)
        self._put((choice, _Kind.REFUSAL, 0, False), delta.refusal)
        self._put((choice, _Kind.TEXT, 0, False), delta.text)
        for call in delta.tool_calls:
            self._put((choice, _Kind.TOOL_CALL, call.index, False), call.name)
            self._put((choice, _Kind.TOOL_CALL, call.index, True), call.arguments)
        function_call = delta.function_call
        if function_call is not None:
            self._put((choice, _Kind.FUNCTION_CALL, 0, False), function_call.name)
            self._put((choice, _Kind.FUNCTION_CALL, 0, True), function_call.arguments)
        for citation in delta.annotations:
            self._put((choice, _Kind.ANNOTATION, 0, False), f"{citation.title} {citation.url}\n")

    def __str__(self) -> str:
        return "\n\n".join(
            _unescape("".join(pieces)) if key[-1] else "".join(pieces)
            for key, pieces in sorted(self._parts.items())
        )

    def _put(self, key: tuple[int, _Kind, int, bool], text: str | None) -> None:
        if text:
            self._parts.setdefault(key, []).append(text)
            self.length += len(text)


def _turn_texts(turn: Turn) -> Iterator[str]:
    if turn.name:
        yield turn.name
    yield from _extra_texts(turn.extra)
    for part in turn.parts:
        yield from filter(None, _part_texts(part))


def _part_texts(part: Part) -> Iterator[str]:
    """Every text of a part, in order."""
    match part:
        case ToolCall():
            yield part.id or ""
            yield part.name
            yield _unescape(part.arguments)
        case ToolResult():
            yield part.call_id or ""
            yield part.name or ""
            for inner in part.content:
                yield from _part_texts(inner)
            return
        case Reasoning():
            yield part.text
        case Image() | Video():
            yield _unless_base64(part.url)
        case Audio():
            yield from map(_unless_base64, (part.data, part.url))
            yield part.format or ""
        case File():
            yield from map(_unless_base64, (part.data, part.url))
            yield part.id or ""
            yield part.filename or ""
        case _:
            yield part.text
    yield from _extra_texts(part.extra)


def _unless_base64(text: str | None) -> str:
    return "" if text is None or _BASE64_FILE.fullmatch(text) is not None else text


def _extra_texts(extra: FreeObject | None) -> Iterator[str]:
    """Every text inside properties that the caller added, at any depth, in order."""
    # A stack of (name, value), so that the order is kept and deep nesting needs no recursion.
    stack: list[tuple[str, object]] = list(reversed((extra or {}).items()))
    while stack:
        name, value = stack.pop()
        if isinstance(value, str):
            yield _unescape(value) if name == _ARGUMENTS else value
        elif isinstance(value, dict):
            stack += reversed(value.items())
        elif isinstance(value, list):
            stack += ((name, element) for element in reversed(value))


def _unescape(text: str) -> str:
    r"""Replaces `\uXXXX` in the JSON text of arguments, because the escapes could hide a word from
    the judge. The text is not parsed, because a parser drops parts of it, such as the first of two
    equal keys."""
    if "\\u" not in text:
        return text
    unescaped = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    # The two halves of a surrogate pair become one character; a lone half becomes U+FFFD.
    return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
