"""Decodes chat answers, streamed or not, and converts them to events."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from tollkeeper.core.inference import (
    Annotation,
    Call,
    Delta,
    Finish,
    FunctionCallPiece,
    ToolCallPiece,
    UsageReport,
)
from tollkeeper.providers.answer_json import ABSENT, NULL, MalformedAnswer, decode, decode_any
from tollkeeper.providers.chat.usage import read_chat_usage
from tollkeeper.providers.config import BillingRules

# A token's alternatives in its log-probability.
_ALTERNATIVES = "top_logprobs"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Custom(msgspec.Struct, gc=False):
    name: str | None = None
    input: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    # In place of `function`.
    custom: _Custom | None = None


class _UrlCitation(msgspec.Struct, gc=False):
    url: str = ""
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _Annotation(msgspec.Struct, gc=False):
    url_citation: _UrlCitation | None = None


class _Text(msgspec.Struct, gc=False):
    text: str | None = None


class _ImageUrl(msgspec.Struct, gc=False):
    url: str | None = None


class _Image(msgspec.Struct, gc=False):
    image_url: _ImageUrl | str | None = None


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    image_url: _ImageUrl | str | None = None
    # Mistral sends reasoning in the content: one text, or a list of texts.
    thinking: str | list[_Text] | None = None


class _Message(msgspec.Struct, gc=False):
    """Or the delta in a chunk, which has the same fields."""

    content: str | list[_Part] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    annotations: list[_Annotation] | None = None
    # OpenRouter sends images outside of the content.
    images: list[_Image | str] | None = None


class ChunkChoice(msgspec.Struct, gc=False):
    index: int = 0
    message: _Message | None = msgspec.field(default=None, name="delta")
    finish_reason: str | None = None
    logprobs: msgspec.Raw = ABSENT
    # Moonshot reports usage here.
    usage: msgspec.Raw = ABSENT


class _CompleteChoice(msgspec.Struct, gc=False):
    index: int = 0
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = ABSENT


class _GroqExtension(msgspec.Struct, gc=False):
    usage: msgspec.Raw = ABSENT


class Chunk(msgspec.Struct, gc=False):
    """`usage` and `error` stay undecoded, because servers send values of any type."""

    choices: list[ChunkChoice] | None = None
    usage: msgspec.Raw = ABSENT
    x_groq: _GroqExtension | None = None
    error: msgspec.Raw = ABSENT
    system_fingerprint: str | None = None
    service_tier: str | None = None


class Completion(msgspec.Struct, gc=False):
    choices: list[_CompleteChoice] | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: msgspec.Raw = ABSENT


_chunk_decoder = msgspec.json.Decoder(Chunk)
completion_decoder = msgspec.json.Decoder(Completion)


def decode_chunk(payload: bytes) -> Chunk:
    return decode(_chunk_decoder, payload)


def usage_report(
    usage: msgspec.Raw, service_tier: str | None, rules: BillingRules
) -> UsageReport | None:
    if not usage or usage == NULL:
        return None
    return read_chat_usage(
        decode_any(usage),
        service_tier=service_tier,
        cache_adds_to_prompt=rules.cache_adds_to_prompt,
    )


def chunk_usage(chunk: Chunk, service_tier: str | None, rules: BillingRules) -> UsageReport | None:
    """If a chunk has the usage in two fields, the values are the same. `service_tier` is what the
    stream has named so far."""
    report = usage_report(chunk.usage, service_tier, rules)
    if report is None and chunk.x_groq is not None:
        report = usage_report(chunk.x_groq.usage, service_tier, rules)
    if report is None:
        for choice in chunk.choices or ():
            if choice.finish_reason:
                report = report or usage_report(choice.usage, service_tier, rules)
    return report


def text_piece(chunk: Chunk) -> tuple[int, str] | None:
    """Choice and text if the chunk only adds text to one choice, as nearly all do."""
    choices = chunk.choices
    if (
        choices is None
        or len(choices) != 1
        or (chunk.error is not ABSENT and chunk.error != NULL)
        or (chunk.usage is not ABSENT and chunk.usage != NULL)
        or chunk.x_groq is not None
    ):
        return None
    choice = choices[0]
    message, logprobs = choice.message, choice.logprobs
    if (
        choice.finish_reason
        or (logprobs is not ABSENT and logprobs != NULL)
        or message is None
        or type(message.content) is not str
        or not message.content
        or message != _Message(message.content)
    ):
        return None
    return choice.index, message.content


def delta_of_chunk(choice: ChunkChoice) -> Delta | None:
    """None if it adds nothing, such as many servers' first chunk with only the role. Some servers
    send an empty finish reason until the end, so that counts as missing."""
    choice.message = choice.message or _Message()
    choice.finish_reason = choice.finish_reason or None
    delta = delta_of(choice)
    return None if delta.text is None and delta == Delta(choice.index) else delta


def has_free_finish(answer: Chunk | Completion, rules: BillingRules, choices: int) -> bool:
    """With several choices it's never free, because the others may be billed."""
    return (
        rules.free_finish is not None
        and choices == 1
        and any(
            choice.index == 0 and choice.finish_reason == rules.free_finish
            for choice in answer.choices or ()
        )
    )


def has_output(delta: Delta) -> bool:
    """Ending the choice isn't output."""
    return delta != Delta(delta.choice, finish=delta.finish)


def delta_of(choice: ChunkChoice | _CompleteChoice) -> Delta:
    message, raw = choice.message, choice.logprobs
    if message is None:
        # Azure omits the message of a filtered choice.
        if choice.finish_reason != Finish.CONTENT_FILTER:
            raise MalformedAnswer("a choice has no message")
        message = _Message()
    content = message.content
    logprobs = None if raw == NULL or raw is ABSENT else raw.copy()
    # A faster path for messages that only have text, nearly all of them. msgspec compares in C.
    if type(content) is str and message == _Message(content):
        return Delta(choice.index, content or None, logprobs=logprobs, finish=choice.finish_reason)
    reasoning = message.reasoning or message.reasoning_content
    images = tuple(_image_urls(message.images or ()))
    if isinstance(content, list):
        images = (*_image_urls(content), *images)
        reasoning = reasoning or "".join(_thought(part) for part in content)
        content = "".join(part.text or "" for part in content)
    function = message.function_call
    return Delta(
        choice=choice.index,
        text=content or None,
        reasoning=reasoning or None,
        refusal=message.refusal or None,
        tool_calls=_tool_calls(message.tool_calls or ()),
        function_call=FunctionCallPiece(function.name, function.arguments or "")
        if function is not None
        else None,
        annotations=_annotations(message.annotations or ()),
        logprobs=logprobs,
        finish=choice.finish_reason,
        images=images,
    )


def with_asked_alternatives(delta: Delta, call: Call) -> Delta:
    """llama.cpp lists 20 if the request doesn't name a number; OpenAI lists none."""
    if delta.logprobs is None or call.prompt.logprobs is None:
        return delta
    asked = call.prompt.logprobs.top or 0
    written, has_changed = decode_any(delta.logprobs), False
    for name in ("content", "refusal"):
        tokens = written.get(name) if isinstance(written, dict) else None
        for token in tokens if isinstance(tokens, list) else ():
            top = token.get(_ALTERNATIVES) if isinstance(token, dict) else None
            if isinstance(top, list) and len(top) > asked:
                token[_ALTERNATIVES], has_changed = top[:asked], True
    if not has_changed:
        return delta
    return replace(delta, logprobs=msgspec.Raw(msgspec.json.encode(written)))


def _image_urls(parts: "Iterable[_Image | _Part | str]") -> Iterator[str]:
    for part in parts:
        image = part if isinstance(part, str) else part.image_url
        address = image.url if isinstance(image, _ImageUrl) else image
        if address:
            yield address


def _thought(part: _Part) -> str:
    if isinstance(part.thinking, list):
        return "".join(text.text or "" for text in part.thinking)
    return part.thinking or ""


def _tool_calls(pieces: "list[_ToolCall] | tuple[()]") -> tuple[ToolCallPiece, ...]:
    calls = []
    for position, piece in enumerate(pieces):
        name, arguments = None, None
        if piece.custom is not None:
            name, arguments = piece.custom.name, piece.custom.input
        elif piece.function is not None:
            name, arguments = piece.function.name, piece.function.arguments
        # Without streaming, the position is the index.
        index = piece.index if piece.index is not None else position
        if index < 0:
            raise MalformedAnswer("a tool call has a negative index")
        # Some servers send an empty id and name in later pieces.
        calls.append(
            ToolCallPiece(
                index, piece.id or None, name or None, arguments or "", piece.custom is not None
            )
        )
    return tuple(calls)


def _annotations(annotations: "list[_Annotation] | tuple[()]") -> tuple[Annotation, ...]:
    return tuple(
        Annotation(
            url=citation.url,
            title=citation.title or "",
            start_index=max(0, citation.start_index or 0),
            end_index=max(0, citation.end_index or 0),
        )
        for citation in (annotation.url_citation for annotation in annotations)
        if citation is not None
    )
