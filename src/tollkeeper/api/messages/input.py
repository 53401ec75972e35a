"""Turns the messages of a Messages-shaped request into the turns of a prompt."""

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

# Blocks that a provider's own tools wrote into the conversation. A prompt has no part for them, so
# their JSON counts as text.
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
    """Collects the turns of a request, message by message."""

    def __init__(self, model: Model) -> None:
        self._model_reasons = Feature.REASONING in model.supported_features
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
            self._add_input_blocks(role, message.content, place)

    def _add_input_blocks(self, role: Role, blocks: Sequence[msgspec.Raw], place: str) -> None:
        """Adds a message that is not an answer. Each tool result in it becomes a turn of its own,
        before the turn with the other blocks."""
        parts: list[Content] = []
        for at, block in enumerate(blocks):
            block_place = f"{place}.content[{at}]"
            if decode_within(block, _block, block_place).type == "tool_result":
                self._add_tool_result(decode_within(block, _tool_result, block_place), block_place)
            else:
                parts += _parts(block, block_place)
        if parts:
            self.turns.append(Turn(role, tuple(parts), place=place))

    def _add_tool_result(self, result: wire.ToolResultBlock, place: str) -> None:
        content: tuple[Content, ...]
        if result.content is None or isinstance(result.content, str):
            content = (Text(result.content or ""),)
        else:
            content = tuple(_all_parts(result.content, f"{place}.content"))
        part = ToolResult(content, result.tool_use_id)
        self.turns.append(Turn(Role.TOOL, (part,), place=place))

    def _answer_parts(self, blocks: Sequence[msgspec.Raw], place: str) -> Iterator[Part]:
        for at, block in enumerate(blocks):
            block_place = f"{place}[{at}]"
            kind = decode_within(block, _block, block_place).type
            if kind == "thinking":
                thinking = decode_within(block, _thinking, block_place).thinking
                if self._model_reasons:
                    yield Reasoning(thinking)
            elif kind == "tool_use":
                use = decode_within(block, _tool_use, block_place)
                arguments = msgspec.json.encode(use.input).decode()
                yield ToolCall(use.id, use.name, arguments, block_place)
            elif kind != "redacted_thinking":  # Encrypted by another service, so not readable.
                yield from (part for part in _parts(block, block_place) if isinstance(part, Text))


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
            result = decode_within(block, _search_result, place)
            texts = [result.source, result.title, *(part.text for part in result.content)]
            yield from map(Text, texts)
        case _ if kind in _SERVER_BLOCKS:
            yield Text(bytes(block).decode())
        case _:
            raise InvalidRequest(
                f"A block of type {kind[:100]!r} is not allowed here.", param=f"{place}.type"
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
                "Documents by URL are not supported: send the content as base64.",
                param=f"{place}.source.url",
            )
        case wire.FileSource():
            raise _not_stored(place)


def _not_stored(place: str) -> InvalidRequest:
    return InvalidRequest(
        "The gateway does not store files, so file ids do not exist: send the content.",
        param=f"{place}.source.file_id",
    )
