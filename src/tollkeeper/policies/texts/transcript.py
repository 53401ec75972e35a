"""Writes a prompt or an answer as text for the judge: all that a model may read, the keys, numbers and
strings of every object that the client wrote, under its field's name. `tests/faces/test_markers.py` lists the
few fields left out."""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import TypeAlias

import msgspec

from tollkeeper.core.catalog import Model
from tollkeeper.core.inference import Delta
from tollkeeper.core.prompt import (
    AllowedFunctions,
    Audio,
    File,
    FreeObject,
    Image,
    Media,
    NamedFunction,
    OtherChoice,
    Part,
    Prompt,
    Reasoning,
    Refusal,
    Role,
    SearchBlock,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
    Video,
    WebSearch,
)
from tollkeeper.policies.texts.json_escapes import with_decoded_escapes
from tollkeeper.policies.texts.logprob_text import LogprobText
from tollkeeper.policies.texts.media_text import MediaText, UnreadKind, UnreadPart, read_media

# A search result's, with the page.
_ENCRYPTED = "encrypted_content"


class Transcript(msgspec.Struct, frozen=True, gc=False):
    """Its text, and the parts that the judge can't read, or not completely."""

    text: str
    unread: tuple[UnreadPart, ...] = ()


def transcript(prompt: Prompt, model: Model) -> Transcript:
    """As the model's backends receive it. Turns have their role as a title. Tools and options come first: an
    application's calls usually share them, so the judge's server can cache the beginning."""
    unread: list[UnreadPart] = []
    sections = [section(title, "\n".join(texts)) for title, texts in _fields(prompt) if texts]
    sections += _turn_sections(prompt.turns, model, unread)
    return Transcript("\n\n".join(sections), tuple(unread))


def section(title: str, text: str) -> str:
    """Lines with JSON escapes come again, decoded."""
    return f"[{title}]\n{with_decoded_escapes(text)}"


def _fields(prompt: Prompt) -> Iterator[tuple[str, list[str]]]:
    """Without the turns."""
    for legacy, title in ((False, "tools"), (True, "functions")):
        described = [tool.described() for tool in prompt.tools if tool.legacy is legacy]
        yield title, [_json(described)] if described else []
    yield "server_tools", [_json(prompt.server_tools)] if prompt.server_tools else []
    if prompt.tool_choice is not None:
        yield "tool_choice", list(_choice_texts(prompt.tool_choice))
    if prompt.web_search is not None:
        yield "web_search", list(_search_texts(prompt.web_search))
    if prompt.output_format is not None:
        yield "response_format", [_json(prompt.output_format.described())]
    stop = prompt.sampling.stop
    yield "stop", [stop] if isinstance(stop, str) else list(stop or ())
    # Booleans and numbers have no words.
    options_with_words = {
        option.name: option.value
        for option in prompt.options
        if isinstance(option.value, str | dict | list)
    }
    yield "options", list(_object_texts(options_with_words))
    yield "numbers", _rounded_numbers(prompt)


def _rounded_numbers(prompt: Prompt) -> list[str]:
    """Those that the JSON decoder rounds or the encoder writes differently. A chat backend gets them as the
    client wrote them, so the judge must too."""
    found: list[str] = []

    def add_if_rounded(written: str) -> None:
        if _json(float(written)) != written:
            found.append(written)

    reader = msgspec.json.Decoder(float_hook=add_if_rounded)
    for raw in (prompt.written or {}).values():
        reader.decode(raw)
    return found


def _choice_texts(choice: ToolChoice) -> Iterator[str]:
    match choice.choice:
        case NamedFunction(name=name):
            yield name
        case AllowedFunctions(names=names):
            yield from names
        case OtherChoice(written=written):
            yield from _object_texts(written)
    for written in choice.written:
        yield from _object_texts(written)


def _search_texts(search: WebSearch) -> Iterator[str]:
    yield search.context_size or ""
    if search.location is not None:
        yield from search.location.set_fields().values()
    yield from _object_texts(search.extra)


class _Kind(IntEnum):
    """In this order."""

    REASONING = 0
    REFUSAL = 1
    TEXT = 2
    TOOL_CALL = 3
    FUNCTION_CALL = 4
    ANNOTATION = 5
    TOOL_CALL_ID = 6
    IMAGE = 7


class AnswerText:
    """By choice, kind and tool call. Pieces of two tool calls, or of reasoning and text, may alternate in a
    stream, and would be unreadable in order of arrival."""

    def __init__(self) -> None:
        # By choice, kind, number of the tool call, and whether it's arguments.
        self._parts: dict[tuple[int, _Kind, int, bool], list[str]] = {}
        # By choice; None: the prompt's.
        self._logprobs: dict[int | None, LogprobText] = {}
        self._length = 0
        # Each kind once.
        self.unread: tuple[UnreadPart, ...] = ()

    @property
    def length(self) -> int:
        return self._length + sum(logprobs.length for logprobs in self._logprobs.values())

    def add(self, delta: Delta) -> None:
        """Without images and log-probabilities."""
        choice = delta.choice
        self._put((choice, _Kind.REASONING, 0, False), delta.reasoning)
        self._put((choice, _Kind.REFUSAL, 0, False), delta.refusal)
        self._put((choice, _Kind.TEXT, 0, False), delta.text)
        for call in delta.tool_calls:
            self._put((choice, _Kind.TOOL_CALL_ID, call.index, False), call.id)
            self._put((choice, _Kind.TOOL_CALL, call.index, False), call.name)
            self._put((choice, _Kind.TOOL_CALL, call.index, True), call.arguments)
        function_call = delta.function_call
        if function_call is not None:
            self._put((choice, _Kind.FUNCTION_CALL, 0, False), function_call.name)
            self._put((choice, _Kind.FUNCTION_CALL, 0, True), function_call.arguments)
        if delta.search_block is not None:
            for text in _search_block_texts(delta.search_block, []):
                self._put((choice, _Kind.ANNOTATION, 0, False), f"{text}\n")
        for citation in delta.annotations:
            self._put((choice, _Kind.ANNOTATION, 0, False), f"{citation.title} {citation.url}\n")

    def add_logprobs(self, choice: int | None, logprobs: LogprobText) -> None:
        earlier = self._logprobs.setdefault(choice, logprobs)
        if earlier is not logprobs:
            earlier.append(logprobs)

    def add_image(self, choice: int, image: MediaText) -> None:
        """Its URL, or the image if it is text (SVG). No judge reads the picture."""
        for text in image.texts:
            self._put((choice, _Kind.IMAGE, 0, False), f"{text}\n")
        self.unread = (UnreadPart(UnreadKind.IMAGE, ""),)

    def __str__(self) -> str:
        """As written, with JSON escapes."""
        texts = ["".join(pieces) for _, pieces in sorted(self._parts.items())]
        # Most log-probabilities only repeat the answer.
        answer_texts = set(texts)
        for logprobs in self._logprobs.values():
            texts += [text for text in logprobs.texts() if text not in answer_texts]
        return "\n\n".join(texts)

    def _put(self, key: tuple[int, _Kind, int, bool], text: str | None) -> None:
        if text:
            self._parts.setdefault(key, []).append(text)
            self._length += len(text)


def _turn_sections(turns: Sequence[Turn], model: Model, unread: list[UnreadPart]) -> Iterator[str]:
    joins = {served.joins_turns for served in model.by_backend}
    for group in _joined_turns(turns) if True in joins else ([turn] for turn in turns):
        if False not in joins:
            yield section(group[0].role, "\n".join(_turn_texts(group, unread)))
            continue
        yield from (section(turn.role, "\n".join(_turn_texts([turn], unread))) for turn in group)
        if len(group) > 1:
            # Nobody knows yet whether the backend that answers joins these turns. The judge reads both forms,
            # because joining can hide a word too: "the" and "rapist" become "therapist".
            texts = map(_joined_text, _adjacent(_placed(group)))
            yield section(group[0].role, "\n".join(filter(None, texts)))


def _joined_turns(turns: Iterable[Turn]) -> list[list[Turn]]:
    """Groups whose texts become adjacent in one message (`providers/conversation.py`). An empty turn, or one
    with only reasoning, is a group of its own and separates no others, because it may have no block. Tool
    results do."""
    groups: list[list[Turn]] = []
    last: list[Turn] = []
    for turn in turns:
        if not any(map(_is_sent, turn.parts)):
            groups.append([turn])
        elif last and _message_role(turn) == _message_role(last[0]) is not Role.TOOL:
            last.append(turn)
        else:
            last = [turn]
            groups.append(last)
    return groups


def _is_sent(part: Part) -> bool:
    """It may have no block."""
    match part:
        case Text() | Refusal():
            return bool(part.text)
        case Reasoning():
            return False
    return True


def _message_role(turn: Turn) -> Role:
    match turn.role:
        case Role.DEVELOPER:
            return Role.SYSTEM
        case Role.FUNCTION:
            return Role.TOOL
    return turn.role


# With the position of its turn.
_Placed: TypeAlias = tuple[Part, str]


def _placed(turns: Iterable[Turn]) -> list[_Placed]:
    return [(part, turn.place) for turn in turns for part in turn.parts]


def _turn_texts(turns: Sequence[Turn], unread: list[UnreadPart]) -> Iterator[str]:
    """Of turns that a backend gets as one message."""
    for turn in turns:
        if turn.name:
            yield turn.name
        yield from _object_texts(turn.extra)
    yield from filter(None, _content_texts(_placed(turns), unread))


def _content_texts(placed: Iterable[_Placed], unread: list[UnreadPart]) -> Iterator[str]:
    """Adjacent texts without a separator, as some backends get them: a word may span several parts."""
    for adjacent in _adjacent(placed):
        yield "".join(part.text for part, _ in adjacent if isinstance(part, Reasoning))
        yield _joined_text(adjacent)
        for part, place in adjacent:
            yield from _part_texts(part, place, unread)


def _adjacent(placed: Iterable[_Placed]) -> Iterator[tuple[_Placed, ...]]:
    """Between media and tool results. Texts around reasoning or tool calls are adjacent too, because some
    backends get those apart."""
    for _, group in groupby(placed, lambda one: isinstance(one[0], Media | ToolResult)):
        yield tuple(group)


def _joined_text(placed: Iterable[_Placed]) -> str:
    return "".join(part.text for part, _ in placed if isinstance(part, Text | Refusal))


def _part_texts(part: Part, place: str, unread: list[UnreadPart]) -> Iterator[str]:
    """Except what is joined with other parts. Adds the part to `unread` unless the judge can read all of
    it."""
    match part:
        case ToolCall():
            yield part.id or ""
            yield part.name
            yield part.arguments
        case ToolResult():
            yield part.call_id or ""
            yield part.name or ""
            yield from _content_texts([(inner, place) for inner in part.content], unread)
            return
        case Reasoning():
            if part.sealed:
                unread.append(UnreadPart(UnreadKind.SEALED_REASONING, place))
        case SearchBlock():
            yield from _search_block_texts(part, unread)
        case Image() | Video() | Audio() | File():
            yield from _media_texts(part, unread)
    yield from _object_texts(part.extra)


def _search_block_texts(block: SearchBlock, unread: list[UnreadPart]) -> Iterator[str]:
    """Pages found are encrypted, like a file that isn't text. A text that only claims to be is yielded."""
    encrypted: list[str] = []
    yield from _object_texts(block.written, encrypted)
    contents = [read_media(value) for value in encrypted]
    for content in contents:
        yield from content.texts
    if contents:
        unread.append(UnreadPart(UnreadKind.SEARCH_RESULT, block.place))


def _media_texts(media: Media, unread: list[UnreadPart]) -> Iterator[str]:
    data = media.data if isinstance(media, Audio | File) else None
    filename = media.filename if isinstance(media, File) else None
    contents = [
        read_media(written, filename) for written in (media.url, data) if written is not None
    ]
    for content in contents:
        yield from content.texts
    # A picture's or a sound's content may happen to be valid text, so only a file counts.
    can_be_text = isinstance(media, File) and media.id is None
    if not can_be_text or not all(content.complete for content in contents):
        unread.append(UnreadPart(UnreadKind(media.modality), media.place))
    match media:
        case Image():
            yield media.detail or ""
        case Audio():
            yield media.format or ""
        case File():
            yield media.id or ""
            yield media.filename or ""


def _object_texts(value: FreeObject | None, encrypted: list[str] | None = None) -> Iterator[str]:
    """Every key and value at any depth, in order, a line each. Texts under `_ENCRYPTED` go to `encrypted`
    instead, if given."""
    # A stack, because the nesting may be deep. A value in a list has an empty key.
    stack: list[tuple[str, object]] = list(reversed((value or {}).items()))
    while stack:
        key, current = stack.pop()
        if isinstance(current, dict):
            if key:
                yield key
            stack += reversed(current.items())
        elif isinstance(current, list):
            if key:
                yield key
            stack += [("", inner) for inner in reversed(current)]
        elif encrypted is not None and key == _ENCRYPTED and isinstance(current, str):
            encrypted.append(current)
        else:
            text = current if isinstance(current, str) else _json(current)
            yield f"{key}: {text}" if key else text


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
