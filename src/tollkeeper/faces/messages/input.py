"""Turns the messages of a Messages request into turns, for calls and token counts.

A call is rejected for an empty message, a tool result without its tool call, a block written by a
provider's tool other than web search, enabled citations, or earlier reasoning that was changed or
comes from another project. A token count accepts all of these, and ignores cache marks.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from tollkeeper.calls.reasoning_seal import KeptReasoning
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.messages_behavior import PromptCaching
from tollkeeper.core.prompt import (
    SEARCH_RESULTS,
    SERVER_TOOL_USE,
    Content,
    File,
    FreeObject,
    Image,
    Part,
    Reasoning,
    Role,
    SearchBlock,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from tollkeeper.faces.strict_json import decode_within
from tollkeeper.faces.wire import messages as wire

# None for a text that can't be unsealed.
Unseal = Callable[[str], KeptReasoning | None]

_block = msgspec.json.Decoder(wire.Block)
_text = msgspec.json.Decoder(wire.TextBlock)
_thinking = msgspec.json.Decoder(wire.ThinkingBlock)
_redacted_thinking = msgspec.json.Decoder(wire.RedactedThinkingBlock)
_tool_use = msgspec.json.Decoder(wire.ToolUseBlock)
_server_tool_use = msgspec.json.Decoder(wire.ServerToolUseBlock)
_search_results = msgspec.json.Decoder(wire.SearchResultsBlock)
_free_object = msgspec.json.Decoder(FreeObject)
_tool_result = msgspec.json.Decoder(wire.ToolResultBlock)
_search_result = msgspec.json.Decoder(wire.SearchResultBlock)
_image = msgspec.json.Decoder(wire.ImageBlock)
_document = msgspec.json.Decoder(wire.DocumentBlock)

# Written into the conversation by a provider's tools. Web searches go unchanged to backends with
# the same protocol. Others are rejected in a call, and count as JSON text in a token count.
_SERVER_BLOCKS = frozenset(
    {
        SERVER_TOOL_USE,
        SEARCH_RESULTS,
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "container_upload",
    }
)
_SEARCH = "web_search"


class MessagesConversation:
    """A mark (`cache_control`) asks the provider to cache the prompt up to there."""

    def __init__(self, model: Model, unseal: Unseal, *, for_token_count: bool) -> None:
        self._model = model
        self._unseal = unseal
        self._for_token_count = for_token_count
        self._keeps_marks = not for_token_count and model.messages.caching is not PromptCaching.OFF
        self._model_reasons = Feature.REASONING in model.supported_features
        self._call_ids: set[str] = set()
        self.turns: list[Turn] = []

    def instruct(self, system: str | Sequence[wire.SystemText]) -> None:
        if isinstance(system, str):
            parts: tuple[Text, ...] = (Text(system),)
        else:
            parts = tuple(
                Text(block.text, self.mark_properties(block.cache_control)) for block in system
            )
        if any(part.text for part in parts):
            self.turns.append(Turn(Role.SYSTEM, parts, place="system"))

    def add(self, message: wire.MessagesMessage, place: str) -> None:
        role = Role(message.role)
        if isinstance(message.content, str):
            self.turns.append(Turn(role, (Text(message.content),), place=place))
        elif role is Role.ASSISTANT:
            parts = tuple(self._answer_parts(message.content, f"{place}.content"))
            if parts or self._for_token_count:
                self.turns.append(Turn(role, parts, place=place))
        else:
            self._add_input_blocks(role, message.content, place)

    def mark_last_part(self, mark: wire.CacheControl) -> None:
        """Unless it already has a mark or can't have one."""
        if not self.turns or not self.turns[-1].parts:
            return
        last = self.turns[-1]
        part = last.parts[-1]
        if self._keeps_marks and not part.extra and not isinstance(part, ToolCall | Reasoning):
            parts = (*last.parts[:-1], replace(part, extra=self.mark_properties(mark)))
            self.turns[-1] = replace(last, parts=parts)

    def mark_properties(self, mark: wire.CacheMark | wire.CacheControl | None) -> FreeObject | None:
        """Additional properties of a part or tool; None if the prompt needs none."""
        if mark is None or not self._keeps_marks:
            return None
        lifetime = {} if mark.ttl is None else {"ttl": mark.ttl}
        return {"cache_control": {"type": mark.type, **lifetime}}

    def _add_input_blocks(self, role: Role, blocks: Sequence[msgspec.Raw], place: str) -> None:
        """Each tool result becomes a turn of its own, and the other blocks one turn after them."""
        if not blocks and not self._for_token_count:
            raise InvalidRequest("The message has no content.", param=f"{place}.content")
        parts: list[Content] = []
        for at, block in enumerate(blocks):
            block_place = f"{place}.content[{at}]"
            if decode_within(block, _block, block_place).type == "tool_result":
                self._add_tool_result(decode_within(block, _tool_result, block_place), block_place)
            else:
                parts += self._parts(block, block_place)
        if parts:
            self.turns.append(Turn(role, tuple(parts), place=place))

    def _add_tool_result(self, result: wire.ToolResultBlock, place: str) -> None:
        if not self._for_token_count and result.tool_use_id not in self._call_ids:
            raise InvalidRequest(
                "No tool_use block before this result has this id.", param=f"{place}.tool_use_id"
            )
        content: tuple[Content, ...]
        if result.content is None or isinstance(result.content, str):
            content = (Text(result.content or ""),)
        else:
            content = tuple(self._all_parts(result.content, f"{place}.content"))
        part = ToolResult(
            content,
            result.tool_use_id,
            is_error=result.is_error is True,
            extra=self.mark_properties(result.cache_control),
        )
        self.turns.append(Turn(Role.TOOL, (part,), place=place))

    def _answer_parts(self, blocks: Sequence[msgspec.Raw], place: str) -> Iterator[Part]:
        """Reasoning, tool calls and texts, but no images or files."""
        for at, block in enumerate(blocks):
            block_place = f"{place}[{at}]"
            match decode_within(block, _block, block_place).type:
                case "thinking":
                    thinking = decode_within(block, _thinking, block_place)
                    yield from self._reasoning(
                        thinking.signature, thinking.thinking, f"{block_place}.signature"
                    )
                case "redacted_thinking":
                    redacted = decode_within(block, _redacted_thinking, block_place)
                    yield from self._reasoning(redacted.data, "", f"{block_place}.data")
                case "tool_use":
                    use = decode_within(block, _tool_use, block_place)
                    self._call_ids.add(use.id)
                    arguments = msgspec.json.encode(use.input).decode()
                    yield ToolCall(use.id, use.name, arguments, block_place)
                case kind if self._is_search(block, kind, block_place):
                    yield self._search_block(block, kind, block_place)
                case _:
                    parts = self._parts(block, block_place)
                    yield from (part for part in parts if isinstance(part, Text))

    def _is_search(self, block: msgspec.Raw, kind: str, place: str) -> bool:
        """Only if all backends of the model can read it."""
        if not self._model.messages.has_search_blocks:
            return False
        if kind == SERVER_TOOL_USE:
            return decode_within(block, _server_tool_use, place).name == _SEARCH
        return kind == SEARCH_RESULTS

    def _search_block(self, block: msgspec.Raw, kind: str, place: str) -> SearchBlock:
        if kind == SEARCH_RESULTS:
            mark = decode_within(block, _search_results, place).cache_control
        else:
            mark = decode_within(block, _server_tool_use, place).cache_control
        written = decode_within(block, _free_object, place)
        written.pop("cache_control", None)
        return SearchBlock(written, place, self.mark_properties(mark))

    def _reasoning(self, sealed: str | None, text: str, place: str) -> Iterator[Reasoning]:
        """`sealed` is how the gateway sent the reasoning to the client. What's in it for a backend
        only goes to the model that wrote it. Yields nothing if the model can't reason."""
        unsealed = None if sealed is None else self._unseal(sealed)
        if not self._for_token_count and (unsealed is None or unsealed.text != text):
            raise InvalidRequest(
                "This reasoning was changed, or another service or project has written it: send it "
                "back unchanged, or leave the block out.",
                param=place,
            )
        sealed_by_backend = () if unsealed is None else unsealed.sealed_for(self._model)
        if self._model_reasons and (text or sealed_by_backend):
            yield Reasoning(text, sealed_by_backend)

    def _all_parts(self, blocks: Sequence[msgspec.Raw], place: str) -> Iterator[Content]:
        for at, block in enumerate(blocks):
            yield from self._parts(block, f"{place}[{at}]")

    def _parts(self, block: msgspec.Raw, place: str) -> Iterator[Content]:
        kind = decode_within(block, _block, place).type
        match kind:
            case "text":
                text = decode_within(block, _text, place)
                yield Text(text.text, self.mark_properties(text.cache_control))
            case "image":
                yield self._image_part(decode_within(block, _image, place), place)
            case "document":
                document = decode_within(block, _document, place)
                yield from self._with_last_marked(self._document_parts(document, place), document)
            case "search_result":
                result = decode_within(block, _search_result, place)
                self._refuse_citations(result.citations, place)
                texts = [result.source, result.title, *(part.text for part in result.content)]
                yield from self._with_last_marked(map(Text, texts), result)
            case _ if kind in _SERVER_BLOCKS and self._for_token_count:
                yield Text(bytes(block).decode())
            case _ if kind in _SERVER_BLOCKS:
                raise OptionUnsupported(
                    f"Blocks of type {kind} are not supported.", param=f"{place}.type"
                )
            case _:
                raise InvalidRequest(
                    f"A block of type {kind[:100]!r} is not allowed here.", param=f"{place}.type"
                )

    def _with_last_marked(
        self, parts: Iterator[Content], block: wire.MarkedBlock
    ) -> Iterator[Content]:
        block_parts = list(parts)
        mark = self.mark_properties(block.cache_control)
        if block_parts and mark is not None:
            block_parts[-1] = replace(block_parts[-1], extra=mark)
        yield from block_parts

    def _image_part(self, image: wire.ImageBlock, place: str) -> Image:
        source, mark = image.source, self.mark_properties(image.cache_control)
        match source:
            case wire.Base64Source():
                address = f"data:{source.media_type};base64,{source.data}"
                return Image(address, place=place, extra=mark)
            case wire.UrlSource():
                return Image(source.url, place=place, extra=mark)
        raise _not_stored(place)

    def _document_parts(self, document: wire.DocumentBlock, place: str) -> Iterator[Content]:
        self._refuse_citations(document.citations, place)
        yield from (Text(text) for text in (document.title, document.context) if text)
        source = document.source
        match source:
            case wire.PlainTextSource():
                yield Text(source.data)
            case wire.ContentSource():
                if isinstance(source.content, str):
                    yield Text(source.content)
                else:
                    yield from self._all_parts(source.content, f"{place}.source.content")
            case wire.Base64Source():
                yield File(data=f"data:{source.media_type};base64,{source.data}", place=place)
            case wire.UrlSource():
                raise OptionUnsupported(
                    "Documents by URL are not supported: send the content as base64.",
                    param=f"{place}.source.url",
                )
            case wire.FileSource():
                raise _not_stored(place)

    def _refuse_citations(self, citations: wire.Citations | None, place: str) -> None:
        if citations is not None and citations.enabled and not self._for_token_count:
            raise OptionUnsupported(
                "Citations of documents are not supported.", param=f"{place}.citations"
            )


def _not_stored(place: str) -> InvalidRequest:
    return InvalidRequest(
        "The gateway does not store files, so file ids do not exist: send the content.",
        param=f"{place}.source.file_id",
    )
