"""One chat completion from an answer's events, and the parts that streams encode too."""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from tollkeeper.core.inference import (
    Annotation,
    Batch,
    Call,
    Delta,
    FunctionCallPiece,
    Opened,
    ToolCallPiece,
    other_fields,
)
from tollkeeper.core.provider_words import (
    known_counts,
    known_fingerprint,
    known_finish,
    known_service_tier,
)
from tollkeeper.core.usage import Usage
from tollkeeper.faces.chat.prompt import hides_reasoning
from tollkeeper.faces.wire import chat as wire

_LISTED_LOGPROBS = msgspec.json.Decoder(dict[str, list[msgspec.Raw] | None])
_PROMPT_LOGPROBS = msgspec.json.Decoder(list[dict[str, msgspec.Raw] | None])


def completion_id(request_id: str) -> str:
    return f"chatcmpl-{request_id.replace('-', '')}"


class _Logprobs:
    """One choice's log-probabilities. A single piece reaches the client unchanged. Several are
    joined, without those that have a value that's neither a list nor null. There may be one per
    token, so each is joined when it arrives."""

    __slots__ = ("_first", "_joined")

    def __init__(self) -> None:
        self._first: msgspec.Raw | None = None
        self._joined: dict[str, list[msgspec.Raw] | None] | None = None

    def add(self, piece: msgspec.Raw) -> None:
        if self._joined is None:
            if self._first is None:
                self._first = piece
                return
            self._joined = {}
            self._join(self._joined, self._first)
        self._join(self._joined, piece)

    def collected(self) -> Any:
        return self._first if self._joined is None else self._joined

    def _join(self, joined: dict[str, list[msgspec.Raw] | None], piece: msgspec.Raw) -> None:
        try:
            lists = _LISTED_LOGPROBS.decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        for name, values in lists.items():
            joined_values = joined.setdefault(name, values)
            if joined_values is None:
                joined[name] = values
            elif values is not None and joined_values is not values:
                joined_values += values


class _OtherFields(msgspec.Struct):
    """What a choice has besides text."""

    # Only with images: for each, the text before it and the image.
    parts: list[dict[str, Any]] = []
    reasoning: list[str] = []
    refusal: list[str] = []
    tool_calls: dict[int, dict[str, Any]] = {}
    function_call: dict[str, Any] | None = None
    annotations: list[wire.Annotation] = []
    logprobs: _Logprobs | None = None


class _Choice(msgspec.Struct):
    # Since the last image, or since the beginning.
    texts: list[str] = []
    finish: str | None = None
    other: _OtherFields | None = None


class ChatAssembly(msgspec.Struct):
    """The call's sink if the answer isn't streamed."""

    call: Call
    body: wire.ChatRequest
    created: int
    _opened: Opened = Opened()
    _choices: defaultdict[int, _Choice] = msgspec.field(
        default_factory=partial(defaultdict, _Choice)
    )

    async def take(self, batch: Batch) -> None:
        for event in batch:
            if type(event) is Delta:
                choice = self._choices[event.choice]
                if event.text is not None:
                    choice.texts.append(event.text)
                if event.finish is not None:
                    choice.finish = known_finish(event.finish)
                if any(other_fields(event)):
                    self._add_other_fields(choice, event)
            elif type(event) is Opened:
                self._opened = event

    def held_back(self) -> None:
        """The client gets nothing before the answer is complete anyway."""

    def text_writer(self) -> None:
        """The text arrives in `take` instead."""

    def completion(self, usage: Usage) -> wire.ChatCompletion:
        call, opened = self.call, self._opened
        return wire.ChatCompletion(
            id=completion_id(call.request_id),
            object="chat.completion",
            created=self.created,
            model=call.model.id,
            choices=[*map(self._choice, sorted(self._choices))],
            usage=usage_view(usage),
            system_fingerprint=known_fingerprint(opened.system_fingerprint),
            service_tier=known_service_tier(opened.service_tier),
            prompt_logprobs=opened.prompt_logprobs and _prompt_logprobs(opened.prompt_logprobs),
        )

    def _add_other_fields(self, choice: _Choice, delta: Delta) -> None:
        other = choice.other = choice.other or _OtherFields()
        if delta.images:
            other.parts += content_parts("".join(choice.texts), delta.images)
            choice.texts.clear()
        if delta.reasoning is not None and not hides_reasoning(self.body):
            other.reasoning.append(delta.reasoning)
        if delta.refusal is not None:
            other.refusal.append(delta.refusal)
        for piece in delta.tool_calls:
            _add_tool_call(other.tool_calls, piece)
        if delta.function_call is not None:
            other.function_call = _with_function_call(other.function_call, delta.function_call)
        other.annotations += map(annotation_view, delta.annotations)
        if delta.logprobs is not None:
            other.logprobs = other.logprobs or _Logprobs()
            other.logprobs.add(delta.logprobs)

    def _choice(self, index: int) -> wire.ChatChoice:
        choice = self._choices[index]
        text = "".join(choice.texts) if choice.texts else None
        message, logprobs = wire.AnswerMessage(role="assistant", content=text), None
        if (other := choice.other) is not None:
            if other.parts:
                message.content = [*other.parts, *content_parts(text or "", ())]
            message.refusal = "".join(other.refusal) or None
            message.reasoning = message.reasoning_content = "".join(other.reasoning) or None
            calls = other.tool_calls
            message.tool_calls = [calls[number] for number in sorted(calls)] or None
            message.function_call = other.function_call
            message.annotations = other.annotations or None
            logprobs = other.logprobs and other.logprobs.collected()
        return wire.ChatChoice(
            index=index, message=message, logprobs=logprobs, finish_reason=choice.finish
        )


def usage_view(usage: Usage) -> wire.ChatUsage:
    return wire.ChatUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=usage.prompt_details and _prompt_counts(usage.prompt_details),
        completion_tokens_details=usage.completion_details and _counts(usage.completion_details),
    )


def content_parts(text: str, images: Iterable[str]) -> list[dict[str, Any]]:
    """A list of parts instead of a string. An empty text has no part."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": image}} for image in images]


def called_tool_view(piece: ToolCallPiece, *, custom: bool) -> tuple[str, dict[str, str]]:
    """The field for the called tool ("function" or "custom"), and what the piece adds to it."""
    name_field = {} if piece.name is None else {"name": piece.name}
    if custom:
        return "custom", {**name_field, "input": piece.arguments}
    return "function", {**name_field, "arguments": piece.arguments}


def annotation_view(annotation: Annotation) -> wire.Annotation:
    return wire.Annotation(
        type="url_citation",
        url_citation=wire.UrlCitation(
            url=annotation.url,
            title=annotation.title,
            start_index=annotation.start_index,
            end_index=annotation.end_index,
        ),
    )


def _counts(details: dict[str, Any]) -> dict[str, int | None]:
    """The API only allows integers and null."""
    known = known_counts(details)
    return {name: value for name, value in known.items() if value is None or _is_integer(value)}


def _prompt_counts(details: dict[str, Any]) -> wire.PromptDetails:
    """The API also allows maps of integers here, and only here."""
    maps = {
        name: value
        for name, value in known_counts(details).items()
        if isinstance(value, dict) and all(map(_is_integer, value.values()))
    }
    return {**_counts(details), **maps}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt_logprobs(logprobs: msgspec.Raw) -> msgspec.Raw | None:
    """Unchanged if it's an array of objects and nulls, as the API requires, otherwise None."""
    try:
        _PROMPT_LOGPROBS.decode(logprobs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return logprobs


def _add_tool_call(calls: dict[int, dict[str, Any]], piece: ToolCallPiece) -> None:
    call = calls.get(piece.index)
    # The first piece tells whether the tool is custom or a function.
    kind, tool_fields = called_tool_view(
        piece, custom=piece.custom if call is None else "custom" in call
    )
    if call is None:
        call = calls[piece.index] = {"id": "", "type": kind, kind: {"name": ""}}
    if piece.id is not None:
        call["id"] = piece.id
    for name, text in tool_fields.items():
        call[kind][name] = call[kind].get(name, "") + text


def _with_function_call(
    call_so_far: dict[str, Any] | None, piece: FunctionCallPiece
) -> dict[str, Any]:
    call = call_so_far or {"name": "", "arguments": ""}
    call["name"] += piece.name or ""
    call["arguments"] += piece.arguments
    return call
