"""What a model reads and what it says, as text for those who judge it."""

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

# A file in base64 holds no words: where files stand, it is left out.
_BASE64_FILE = re.compile(r"data:[\w./+-]+;base64,[A-Za-z0-9+/=_-]*|[A-Za-z0-9+/=_-]{256,}")
_ARGUMENTS = "arguments"
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def transcript(prompt: Prompt) -> str:
    """Everything that the caller lets the model read, in order, each turn under its role. Tools
    and formats come first: they are the same in every call of one application, so the beginning
    of what is judged is the same too."""
    sections = []
    for legacy, title in ((False, "tools"), (True, "functions")):
        described = [tool.described() for tool in prompt.tools if tool.legacy is legacy]
        if described:
            sections.append(section(title, _dense(described)))
    if prompt.output_format is not None:
        sections.append(section("response_format", _dense(prompt.output_format.described())))
    sections += [section(turn.role, "\n".join(_turn_words(turn))) for turn in prompt.turns]
    return "\n\n".join(sections)


def section(title: str, words: str) -> str:
    return f"[{title}]\n{words}"


class _Kind(IntEnum):
    """What an answer is made of, in the order in which it is read."""

    REASONING = 0
    REFUSAL = 1
    TEXT = 2
    TOOL_CALL = 3
    FUNCTION_CALL = 4
    ANNOTATION = 5


class AnswerText:
    """Everything that an answer says, choice by choice, each kind of it apart: pieces of two tool
    calls, or of reasoning and text, may come by turns, and read by turns they would say nothing."""

    def __init__(self) -> None:
        # (choice, kind, number of the tool call, whether it is arguments) -> the pieces
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
        called = delta.function_call
        if called is not None:
            self._put((choice, _Kind.FUNCTION_CALL, 0, False), called.name)
            self._put((choice, _Kind.FUNCTION_CALL, 0, True), called.arguments)
        for found in delta.annotations:
            self._put((choice, _Kind.ANNOTATION, 0, False), f"{found.title} {found.url}\n")

    def __str__(self) -> str:
        return "\n\n".join(
            _arguments("".join(pieces)) if key[-1] else "".join(pieces)
            for key, pieces in sorted(self._parts.items())
        )

    def _put(self, key: tuple[int, _Kind, int, bool], text: str | None) -> None:
        if text:
            self._parts.setdefault(key, []).append(text)
            self.length += len(text)


def _turn_words(turn: Turn) -> Iterator[str]:
    if turn.name:
        yield turn.name
    yield from _extra_words(turn.extra)
    for part in turn.parts:
        yield from filter(None, _part_words(part))


def _part_words(part: Part) -> Iterator[str]:
    """Every text of a part, in reading order."""
    match part:
        case ToolCall():
            yield part.id or ""
            yield part.name
            yield _arguments(part.arguments)
        case ToolResult():
            yield part.call_id or ""
            yield part.name or ""
            for inner in part.content:
                yield from _part_words(inner)
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
    yield from _extra_words(part.extra)


def _unless_base64(text: str | None) -> str:
    return "" if text is None or _BASE64_FILE.fullmatch(text) is not None else text


def _extra_words(extra: FreeObject | None) -> Iterator[str]:
    """Every text inside properties that the caller added, in reading order."""
    waiting: list[tuple[str, object]] = list(reversed((extra or {}).items()))
    while waiting:
        name, found = waiting.pop()
        if isinstance(found, str):
            yield _arguments(found) if name == _ARGUMENTS else found
        elif isinstance(found, dict):
            waiting += reversed(found.items())
        elif isinstance(found, list):
            waiting += ((name, deeper) for deeper in reversed(found))


def _arguments(text: str) -> str:
    """Arguments are JSON inside a text, whose escapes could spell a word that nobody sees. Not
    parsed, because a parser drops what it does not need, such as the first of two equal names."""
    if "\\u" not in text:
        return text
    spelled = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    # Two halves of a pair become one character; a half alone becomes a mark.
    return spelled.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _dense(value: object) -> str:
    return msgspec.json.encode(value).decode()
