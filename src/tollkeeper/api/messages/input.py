"""From a Messages-shaped input to the turns of a prompt."""

from collections.abc import Iterator, Sequence

import msgspec

from tollkeeper.api.http.strict_json import decode_within
from tollkeeper.api.wire import messages as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    Content,
    File,
    Image,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

_block = msgspec.json.Decoder(wire.Block)
_text = msgspec.json.Decoder(wire.TextBlock)
_thinking = msgspec.json.Decoder(wire.ThinkingBlock)
_tool_use = msgspec.json.Decoder(wire.ToolUseBlock)
_tool_result = msgspec.json.Decoder(wire.ToolResultBlock)
_search_result = msgspec.json.Decoder(wire.SearchResultBlock)
_image = msgspec.json.Decoder(wire.ImageBlock)
_document = msgspec.json.Decoder(wire.DocumentBlock)

# What a provider's own tools wrote into a conversation. A prompt has no place for it but its text.
_SERVER_BLOCKS = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "container_upload",
    }
)


class MessagesConversation:
    """The turns of an input as they come together."""

    def __init__(self, model: Model) -> None:
        self._reasons = Feature.REASONING in model.supported_features
        self.turns: list[Turn] = []

    def instruct(self, system: str | Sequence[wire.SystemText]) -> None:
        texts = [system] if isinstance(system, str) else [block.text for block in system]
        if any(texts):
            parts = tuple(Text(text) for text in texts)
            self.turns.append(Turn(Role.SYSTEM, parts, place="system"))

    def add(self, message: wire.MessagesMessage, place: str) -> None:
        role = Role(message.role)
        if isinstance(message.content, str):
            self.turns.append(Turn(role, (Text(message.content),), place=place))
        elif role is Role.ASSISTANT:
            parts = tuple(self._answer_parts(message.content, f"{place}.content"))
            self.turns.append(Turn(role, parts, place=place))
        else:
            self._add_said(role, message.content, place)

    def _add_said(self, role: Role, blocks: Sequence[msgspec.Raw], place: str) -> None:
        """What a user said. Results of tools are turns of their own, before the rest."""
        parts: list[Content] = []
        for at, block in enumerate(blocks):
            where = f"{place}.content[{at}]"
            if decode_within(block, _block, where).type == "tool_result":
                self._add_tool_result(decode_within(block, _tool_result, where), where)
            else:
                parts += _parts(block, where)
        if parts:
            self.turns.append(Turn(role, tuple(parts), place=place))

    def _add_tool_result(self, result: wire.ToolResultBlock, place: str) -> None:
        content: tuple[Content, ...]
        if result.content is None or isinstance(result.content, str):
            content = (Text(result.content or ""),)
        else:
            content = tuple(_all_parts(result.content, f"{place}.content"))
        found = ToolResult(content, result.tool_use_id)
        self.turns.append(Turn(Role.TOOL, (found,), place=place))

    def _answer_parts(self, blocks: Sequence[msgspec.Raw], place: str) -> Iterator[Part]:
        for at, block in enumerate(blocks):
            where = f"{place}[{at}]"
            kind = decode_within(block, _block, where).type
            if kind == "thinking":
                thought = decode_within(block, _thinking, where).thinking
                if self._reasons:
                    yield Reasoning(thought)
            elif kind == "tool_use":
                use = decode_within(block, _tool_use, where)
                arguments = msgspec.json.encode(use.input).decode()
                yield ToolCall(use.id, use.name, arguments, where)
            elif kind != "redacted_thinking":  # Nobody here can read it.
                yield from (part for part in _parts(block, where) if isinstance(part, Text))


def _all_parts(blocks: Sequence[msgspec.Raw], place: str) -> Iterator[Content]:
    for at, block in enumerate(blocks):
        yield from _parts(block, f"{place}[{at}]")


def _parts(block: msgspec.Raw, place: str) -> Iterator[Content]:
    kind = decode_within(block, _block, place).type
    match kind:
        case "text":
            yield Text(decode_within(block, _text, place).text)
        case "image":
            yield _image_part(decode_within(block, _image, place), place)
        case "document":
            yield from _document_parts(decode_within(block, _document, place), place)
        case "search_result":
            found = decode_within(block, _search_result, place)
            texts = [found.source, found.title, *(part.text for part in found.content)]
            yield from map(Text, texts)
        case _ if kind in _SERVER_BLOCKS:
            yield Text(bytes(block).decode())
        case _:
            raise InvalidRequest(
                f"A block of type {kind[:100]!r} has no place here.", param=f"{place}.type"
            )


def _image_part(image: wire.ImageBlock, place: str) -> Image:
    source = image.source
    match source:
        case wire.Base64Source():
            return Image(f"data:{source.media_type};base64,{source.data}", place=place)
        case wire.UrlSource():
            return Image(source.url, place=place)
    raise _not_stored(place)


def _document_parts(document: wire.DocumentBlock, place: str) -> Iterator[Content]:
    yield from (Text(text) for text in (document.title, document.context) if text)
    source = document.source
    match source:
        case wire.PlainTextSource():
            yield Text(source.data)
        case wire.ContentSource():
            if isinstance(source.content, str):
                yield Text(source.content)
            else:
                yield from _all_parts(source.content, f"{place}.source.content")
        case wire.Base64Source():
            yield File(data=f"data:{source.media_type};base64,{source.data}", place=place)
        case wire.UrlSource():
            raise OptionUnsupported(
                "A file travels as base64: backends have no address for it.",
                param=f"{place}.source.url",
            )
        case wire.FileSource():
            raise _not_stored(place)


def _not_stored(place: str) -> InvalidRequest:
    return InvalidRequest(
        "Nothing is stored here, so no file has an id.", param=f"{place}.source.file_id"
    )
