"""A call's request as text, for those who judge it: every role, tool calls and tool outputs."""

from collections.abc import Iterator
from typing import Any

import msgspec

from tollkeeper.domain.inference import Call


def transcript(call: Call) -> str:
    """Everything that the caller lets the model read, in order, each turn under its role."""
    messages = call.fields.get("messages", [])
    if isinstance(messages, msgspec.Raw):
        messages = msgspec.json.decode(messages)
    else:
        messages = msgspec.to_builtins(messages, builtin_types=(msgspec.Raw,))
    turns = []
    for message in messages:
        plain = {name: _plain(value) for name, value in message.items()}
        said = "\n".join(text for text in _texts(plain) if text)
        turns.append(f"[{plain.get('role', 'user')}]\n{said}")
    return "\n\n".join(turns)


def _texts(message: dict[str, Any]) -> Iterator[str]:
    for field in ("name", "reasoning", "reasoning_content"):
        if isinstance(message.get(field), str):
            yield message[field]
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield _part(part)
    for call in message.get("tool_calls") or []:
        yield _called(call.get("function") if isinstance(call, dict) else call)
    if message.get("function_call") is not None:
        yield _called(message["function_call"])


def _part(part: Any) -> str:
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        return f"[{part.get('type') or 'part'}]"
    return str(part)


def _called(function: Any) -> str:
    if not isinstance(function, dict):
        return msgspec.json.encode(function).decode()
    return f"{function.get('name', '')} {function.get('arguments', '')}"


def _plain(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
