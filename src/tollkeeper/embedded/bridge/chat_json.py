"""Chat requests as arguments of the library, and its answers as chat JSON.

The library promises the types of the chat protocol, but not all of its order. What differs is put
right here: a stream says once how each choice ended, at its end; calls of tools are numbered from
zero; and a report of usage without a single token is no report.
"""

from collections.abc import Mapping
from typing import Any

# What the library has a place for.
_CARRIED = frozenset(
    {"messages", "max_tokens", "temperature", "top_p", "stop", "seed", "logit_bias"}
    | {"presence_penalty", "frequency_penalty", "response_format", "reasoning_effort"}
    | {"tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "service_tier"}
    | {"stream", "stream_options"}
)
# Hints that the answer does not depend on. They are left out, because most providers refuse them.
_HINTS = frozenset({"user", "safety_identifier", "metadata", "prompt_cache_key", "store"})
# Values that ask for what a provider without the field does anyway.
_DEFAULTS: Mapping[str, object] = {"parallel_tool_calls": True, "tool_choice": "auto", "n": 1}
# Marks inside of messages and tools: for some providers the library would make paid caches by them.
_MARKS = ("cache_control", "extra_content")
# Fields that only endpoints of the chat protocol have. For others the library refuses some of them,
# and drops the rest, or what comes of them, without a word.
_CHAT_ONLY = frozenset({"logprobs", "top_logprobs", "logit_bias"})


class UnsupportedField(Exception):
    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def library_arguments(body: Mapping[str, Any], *, speaks_chat: bool) -> dict[str, Any]:
    """The arguments for a call; `speaks_chat` is whether the provider has the chat protocol itself.
    Raises UnsupportedField for what would be lost on the way."""
    arguments: dict[str, Any] = {}
    for name, value in body.items():
        if name in _HINTS or name == "model" or value is None:
            continue
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            continue
        if name not in _CARRIED or (name in _CHAT_ONLY and not speaks_chat):
            raise UnsupportedField(name)
        arguments[name] = _unmarked(value) if name in {"messages", "tools"} else value
    return arguments


def whole_answer(completion: Mapping[str, Any]) -> dict[str, Any]:
    return _with_usage(dict(completion))


class ChunkOrder:
    """The chunks of one stream, in the order that the protocol has."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._finish: dict[int, str] = {}
        # Of each choice: the library's numbers of its tool calls, in the order of their beginning.
        self._tool_calls: dict[int, list[int]] = {}

    def chunk(self, given: Mapping[str, Any]) -> dict[str, Any]:
        chunk = _with_usage(dict(given))
        self._last = {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            finish = choice.pop("finish_reason", None)
            if finish is not None:
                # The library may end a choice several times: after each tool call of Cohere, say.
                self._finish[index] = finish
            for piece in (choice.get("delta") or {}).get("tool_calls") or ():
                piece["index"] = self._tool_call_number(index, piece.get("index") or 0)
        return chunk

    def last_chunk(self) -> dict[str, Any] | None:
        """How each choice ended; None where none did, so that the stream is not taken for whole."""
        if not self._finish:
            return None
        choices = [
            {"index": index, "delta": {}, "finish_reason": finish}
            for index, finish in sorted(self._finish.items())
        ]
        return {**self._last, "object": "chat.completion.chunk", "choices": choices}

    def _tool_call_number(self, choice: int, theirs: int) -> int:
        known = self._tool_calls.setdefault(choice, [])
        if theirs not in known:
            known.append(theirs)
        return known.index(theirs)


def _with_usage(answer: dict[str, Any]) -> dict[str, Any]:
    """Where a provider reports nothing, the library writes zeros for some of them. No prompt has no
    token, so this is no report: the gateway counts then."""
    usage = answer.get("usage")
    if isinstance(usage, dict) and not (
        usage.get("prompt_tokens") or usage.get("completion_tokens")
    ):
        del answer["usage"]
    return answer


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(entry) for entry in value]
    if isinstance(value, dict):
        return {
            name: _unmarked(entry) if name in {"content", "function"} else entry
            for name, entry in value.items()
            if name not in _MARKS
        }
    return value
