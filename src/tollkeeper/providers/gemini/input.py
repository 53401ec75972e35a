"""Encodes a prompt's turns as a Gemini request's system instruction and contents."""

import mimetypes
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from urllib.parse import urlsplit

from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inline_content import InlineContent
from tollkeeper.core.prompt import (
    Audio,
    File,
    FreeObject,
    Image,
    Media,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from tollkeeper.providers.conversation import Conversation, arguments_object
from tollkeeper.providers.gemini.thinking import UNSIGNED, Seal, seals_of
from tollkeeper.providers.inline_media import PDF, content_at, content_in, content_required
from tollkeeper.providers.request_fields import (
    check_detail,
    check_extra,
    present,
    unsupported_content,
)

# Rejected: the provider would read its own storage with the rights of the gateway's account.
_PROVIDER_STORAGE_HOSTS = ("generativelanguage.googleapis.com", "aiplatform.googleapis.com")
# Sent without a media type.
_VIDEO_PAGES = ("www.youtube.com", "youtube.com", "youtu.be", "m.youtube.com")


class Input(Conversation):
    assistant_role = "model"
    blocks_field = "parts"
    takes_late_system = False

    def __init__(self, *, sends_ids: bool, needs_signatures: bool) -> None:
        super().__init__()
        # Vertex AI has no field for tool call ids; it matches by order.
        self._sends_ids = sends_ids
        self._needs_signatures = needs_signatures
        # By call id. A tool result has to name its function.
        self._names: dict[str, str] = {}

    def add(self, turns: Sequence[Turn]) -> None:
        super().add(turns if self._sends_ids else _in_order_of_calls(turns))

    def text_block(self, text: str) -> FreeObject:
        return {"text": text}

    def media_block(self, media: Media) -> FreeObject:
        return media_part(media)

    def marked(
        self, block: FreeObject | None, extra: FreeObject | None, place: str
    ) -> list[FreeObject]:
        check_extra(extra, place)
        return [] if block is None else [block]

    def answer_blocks(self, turn: Turn) -> list[FreeObject]:
        """A seal has a signature and what it signs: a tool call, a thought, or a section of the
        text."""
        seals = seals_of(part for part in turn.parts if isinstance(part, Reasoning))
        by_call = {seal.call: seal.signature for seal in seals if seal.call is not None}
        parts: list[FreeObject] = [
            {"text": seal.thought, "thought": True, "thoughtSignature": seal.signature}
            for seal in seals
            if seal.thought is not None
        ]
        of_texts = (seal for seal in seals if seal.call is None and seal.thought is None)
        text_seals = deque(sorted(of_texts, key=lambda seal: seal.text_end))
        text_start = 0
        has_call = False
        for part in turn.parts:
            match part:
                case Reasoning():
                    continue
                case Text() | Refusal():
                    check_extra(part.extra, part.place or f"{turn.place}.content")
                    parts += _signed_texts(part.text, text_start, text_seals)
                    text_start += len(part.text)
                case ToolCall():
                    signature = by_call.get(part.id or "")
                    if signature is None and self._needs_signatures and not has_call:
                        # Only the first of parallel calls is signed, so
                        # only that needs this.
                        signature = UNSIGNED
                    has_call = True
                    parts.append(self._call(part, signature))
                case Image():
                    parts += self.marked(media_part(part), part.extra, part.place)
                case _:
                    raise unsupported_content(getattr(part, "place", "") or turn.place)
        return parts

    def _call(self, call: ToolCall, signature: str | None) -> FreeObject:
        check_extra(call.extra, call.place)
        function_call: FreeObject = {"name": call.name, "args": arguments_object(call)}
        if not call.legacy:
            call_id = self._id_of(call, "")
            self._names[call_id] = call.name
            if self._sends_ids:
                function_call["id"] = call_id
        return present({"functionCall": function_call, "thoughtSignature": signature})

    def result_block(self, result: ToolResult, turn: Turn, content: list[FreeObject]) -> FreeObject:
        # Texts around media aren't adjacent, so they stay apart, as in the judge's
        # transcript.
        runs = groupby(content, lambda part: "text" in part)
        texts = ["".join(part["text"] for part in run) for is_text, run in runs if is_text]
        kind = "error" if result.is_error else "output"
        response: FreeObject = {"response": {kind: "\n".join(texts)}}
        media = [part for part in content if "text" not in part]
        if media:
            response["parts"] = media
        return {"functionResponse": {**self._answered_call(result, turn), **response}}

    def _answered_call(self, result: ToolResult, turn: Turn) -> FreeObject:
        if turn.role is Role.FUNCTION:
            if not result.name:
                raise InvalidRequest(
                    "The output of a function must contain the function's name.",
                    param=f"{turn.place}.name",
                )
            return {"name": result.name}
        name = self._names.get(result.call_id or "")
        if name is None:
            raise InvalidRequest(
                "No earlier tool call has the id of this tool output.",
                param=f"{turn.place}.tool_call_id",
            )
        return {"id": result.call_id, "name": name} if self._sends_ids else {"name": name}


def _in_order_of_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Tool results between two other turns, which clients may send in any order."""
    positions: dict[str | None, int] = {}
    ordered: list[Turn] = []

    def position(turn: Turn) -> int:
        ids = (part.call_id for part in turn.parts if isinstance(part, ToolResult))
        return positions.get(next(ids, None), 0)

    for has_results, group in groupby(turns, key=lambda turn: turn.role is Role.TOOL):
        if has_results:
            ordered += sorted(group, key=position)
            continue
        for turn in group:
            ordered.append(turn)
            calls = (part for part in turn.parts if isinstance(part, ToolCall))
            positions.update((call.id, len(positions) + at) for at, call in enumerate(calls))
    return ordered


def _signed_texts(text: str, start: int, seals: deque[Seal]) -> list[FreeObject]:
    """Splits at the ends of each signed section. `start` is the text's position in the whole
    answer. `seals` are ordered by their sections' ends; those up to this text's end are removed.
    Omits signatures whose section isn't inside this text."""
    parts: list[FreeObject] = []
    position = 0
    while seals and seals[0].text_end <= start + len(text):
        seal = seals.popleft()
        end, begin = seal.text_end - start, seal.text_end - seal.text_length - start
        # A section that ends where this text begins belongs to the one before.
        if not position <= begin <= end or (end == 0 and start > 0):
            continue
        if begin > position:
            parts.append({"text": text[position:begin]})
        parts.append({"text": text[begin:end], "thoughtSignature": seal.signature})
        position = end
    if position < len(text):
        parts.append({"text": text[position:]})
    return parts


def media_part(media: Media) -> FreeObject:
    match media:
        case Audio(url=None):
            guessed_type = f"audio/{(media.format or 'wav').lower()}"
            return _inline(content_in(media.data or "", media.place), guessed_type)
        case File(url=None, data=None):
            raise content_required(media.place)
        case File(url=None):
            # Without a type, it's usually PDF.
            guessed_type = mimetypes.guess_type(media.filename or "")[0] or PDF
            return _inline(content_in(media.data or "", media.place), guessed_type)
        case Image():
            check_detail(media)
    url = media.url or ""
    content = content_at(url, media.place)
    return _at_address(url, media.place) if content is None else _inline(content, "")


def _inline(content: InlineContent, guessed_type: str) -> FreeObject:
    media_type = content.media_type or guessed_type
    return {"inlineData": {"mimeType": media_type, "data": content.base64}}


def _at_address(url: str, place: str) -> FreeObject:
    try:
        address = urlsplit(url)
        host = (address.hostname or "").rstrip(".")
    except ValueError:
        raise InvalidRequest("The URL cannot be read.", param=place) from None
    if host in _PROVIDER_STORAGE_HOSTS or host.endswith(
        tuple(f"-{storage}" for storage in _PROVIDER_STORAGE_HOSTS)
    ):
        raise OptionUnsupported("Files in the provider's own storage are not allowed.", param=place)
    if host in _VIDEO_PAGES:
        return {"fileData": {"fileUri": url}}
    media_type = mimetypes.guess_type(address.path)[0]
    if media_type is None:
        raise InvalidRequest(
            "The URL must end with a file extension. Otherwise send the content.",
            param=place,
        )
    return {"fileData": {"fileUri": url, "mimeType": media_type}}
