"""What a model reads and what it says, as text for those who judge it. Knows no protocol's shape
beyond the names of chat's fields: whatever holds words is read."""

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec

from tollkeeper.domain.inference import Call, Delta

# What a caller lets the model read beside the conversation. It comes first, because it is the same
# in every call of one application, and so is the beginning of what is judged.
_DESCRIBED = ("tools", "functions", "response_format")
_SPOKEN = (
    *("name", "tool_call_id", "reasoning", "reasoning_content"),
    *("content", "tool_calls", "function_call"),
)
# What can be left out: the name of a kind, and a file in base64 where files stand.
_KIND = re.compile(r"[a-z0-9_]{1,32}")
_FILES = frozenset({"url", "image_url", "data", "file_data"})
_FILE = re.compile(r"data:[\w./+-]+;base64,[A-Za-z0-9+/=_-]*|[A-Za-z0-9+/=_-]{256,}")
_ARGUMENTS = "arguments"
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def transcript(call: Call) -> str:
    """Everything that the caller lets the model read, in order, each turn under its role."""
    turns = [
        turn(field, _dense(_plain(call.fields[field])))
        for field in _DESCRIBED
        if field in call.fields
    ]
    for message in _plain(call.fields.get("messages", [])):
        said = (text for field in _SPOKEN for text in _words(field, message.get(field)))
        turns.append(turn(str(message.get("role", "user")), "\n".join(said)))
    return "\n\n".join(turns)


def turn(role: str, said: str) -> str:
    return f"[{role}]\n{said}"


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


def _words(field: str, value: Any) -> Iterator[str]:
    """Every text inside a value, in reading order."""
    waiting = [(field, value)]
    while waiting:
        name, found = waiting.pop()
        if isinstance(found, str):
            if not _is_silent(name, found):
                yield _arguments(found) if name == _ARGUMENTS else found
        elif isinstance(found, dict):
            waiting += reversed(found.items())
        elif isinstance(found, list):
            waiting += ((name, deeper) for deeper in reversed(found))


def _is_silent(name: str, text: str) -> bool:
    if name == "type":
        return _KIND.fullmatch(text) is not None
    return not text or (name in _FILES and _FILE.fullmatch(text) is not None)


def _arguments(text: str) -> str:
    """Arguments are JSON inside a text, whose escapes could spell a word that nobody sees. Not
    parsed, because a parser drops what it does not need, such as the first of two equal names."""
    if "\\u" not in text:
        return text
    spelled = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    # Two halves of a pair become one character; a half alone becomes a mark.
    return spelled.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _dense(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _plain(value: Any) -> Any:
    """Plain values, whatever of them is still the caller's bytes."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    return msgspec.json.decode(msgspec.json.encode(value))
