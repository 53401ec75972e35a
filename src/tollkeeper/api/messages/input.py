"""From a Messages-shaped input to the messages of a chat request, for the model's own template."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tollkeeper.api.call_fields import ChatMessage
from tollkeeper.api.http.strict_json import decode_within
from tollkeeper.api.wire import messages as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.services.calls.options import require_modality

_block = msgspec.json.Decoder(wire.Block)
_text = msgspec.json.Decoder(wire.TextBlock)
_thinking = msgspec.json.Decoder(wire.ThinkingBlock)
_tool_use = msgspec.json.Decoder(wire.ToolUseBlock)
_tool_result = msgspec.json.Decoder(wire.ToolResultBlock)
_search_result = msgspec.json.Decoder(wire.SearchResultBlock)
_image = msgspec.json.Decoder(wire.ImageBlock)
_document = msgspec.json.Decoder(wire.DocumentBlock)

# What a provider's own tools wrote into a conversation. Chat has no place for it but its text.
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
# The largest that published formulas give for one image.
_TOKENS_PER_IMAGE = 4800


class MessagesConversation:
    """The chat messages of an input as they come together."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._reasons = Feature.REASONING in model.supported_features
        self.messages: list[ChatMessage] = []
        self.images = 0
        # What images and files may take beyond their text, where nobody can count it.
        self.extra_estimate = 0

    def instruct(self, system: str | Sequence[wire.SystemText]) -> None:
        content: str | list[Any] = system if isinstance(system, str) else []
        if not isinstance(system, str):
            content = _simplest([_text_part(block.text) for block in system])
        if content:
            self.messages.append({"role": "system", "content": content})

    def add(self, message: wire.MessagesMessage, place: str) -> None:
        if isinstance(message.content, str):
            self.messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            self._add_answer(message.content, f"{place}.content")
        else:
            self._add_said(message.role, message.content, f"{place}.content")

    def _add_said(self, role: str, blocks: Sequence[msgspec.Raw], place: str) -> None:
        """What a user said. Results of tools are messages of their own, before the rest."""
        parts = []
        for at, block in enumerate(blocks):
            where = f"{place}[{at}]"
            if decode_within(block, _block, where).type == "tool_result":
                self._add_tool_result(decode_within(block, _tool_result, where), where)
            else:
                parts += self._parts(block, where)
        if parts:
            self.messages.append({"role": role, "content": _simplest(parts)})

    def _add_tool_result(self, result: wire.ToolResultBlock, place: str) -> None:
        content: str | list[Any] = ""
        if isinstance(result.content, str):
            content = result.content
        elif result.content is not None:
            content = _simplest(self._all_parts(result.content, f"{place}.content"))
        message = {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}
        self.messages.append(message)

    def _add_answer(self, blocks: Sequence[msgspec.Raw], place: str) -> None:
        texts, thoughts, calls = [], [], []
        for at, block in enumerate(blocks):
            where = f"{place}[{at}]"
            kind = decode_within(block, _block, where).type
            if kind == "thinking":
                thoughts.append(decode_within(block, _thinking, where).thinking)
            elif kind == "tool_use":
                calls.append(_call(decode_within(block, _tool_use, where)))
            elif kind != "redacted_thinking":  # Nobody here can read it.
                texts += [part["text"] for part in self._parts(block, where) if "text" in part]
        answer: ChatMessage = {"role": "assistant", "content": "".join(texts) or None}
        if thoughts and self._reasons:
            answer["reasoning"] = answer["reasoning_content"] = "".join(thoughts)
        if calls:
            answer["tool_calls"] = calls
        self.messages.append(answer)

    def _all_parts(self, blocks: Sequence[msgspec.Raw], place: str) -> list[dict[str, Any]]:
        parts = []
        for at, block in enumerate(blocks):
            parts += self._parts(block, f"{place}[{at}]")
        return parts

    def _parts(self, block: msgspec.Raw, place: str) -> list[dict[str, Any]]:
        kind = decode_within(block, _block, place).type
        match kind:
            case "text":
                return [_text_part(decode_within(block, _text, place).text)]
            case "image":
                return [self._image(decode_within(block, _image, place), place)]
            case "document":
                return self._document(decode_within(block, _document, place), place)
            case "search_result":
                found = decode_within(block, _search_result, place)
                texts = [found.source, found.title, *(part.text for part in found.content)]
                return [_text_part(text) for text in texts]
        if kind in _SERVER_BLOCKS:
            return [_text_part(bytes(block).decode())]
        raise InvalidRequest(
            f"A block of type {kind[:100]!r} has no place here.", param=f"{place}.type"
        )

    def _image(self, image: wire.ImageBlock, place: str) -> dict[str, Any]:
        require_modality(self._model, "image", place)
        self.images += 1
        self.extra_estimate += _TOKENS_PER_IMAGE
        source = image.source
        match source:
            case wire.Base64Source():
                url = f"data:{source.media_type};base64,{source.data}"
            case wire.UrlSource():
                url = source.url
            case _:
                raise _not_stored(place)
        return {"type": "image_url", "image_url": {"url": url}}

    def _document(self, document: wire.DocumentBlock, place: str) -> list[dict[str, Any]]:
        beside = [text for text in (document.title, document.context) if text]
        parts = [_text_part(text) for text in beside]
        source = document.source
        match source:
            case wire.PlainTextSource():
                parts.append(_text_part(source.data))
            case wire.ContentSource():
                if isinstance(source.content, str):
                    parts.append(_text_part(source.content))
                else:
                    parts += self._all_parts(source.content, f"{place}.source.content")
            case wire.Base64Source():
                require_modality(self._model, "file", place)
                # The text of a file is packed: a token a character is enough for most.
                self.extra_estimate += len(source.data)
                data = f"data:{source.media_type};base64,{source.data}"
                parts.append({"type": "file", "file": {"file_data": data}})
            case wire.UrlSource():
                require_modality(self._model, "file", place)
                raise OptionUnsupported(
                    "A file travels as base64: chat has no address for it.",
                    param=f"{place}.source.url",
                )
            case wire.FileSource():
                raise _not_stored(place)
        return parts


def _call(use: wire.ToolUseBlock) -> dict[str, Any]:
    function = {"name": use.name, "arguments": msgspec.json.encode(use.input).decode()}
    return {"id": use.id, "type": "function", "function": function}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _simplest(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text is a string: every template takes that."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        only: str = parts[0]["text"]
        return only
    return parts


def _not_stored(place: str) -> InvalidRequest:
    return InvalidRequest(
        "Nothing is stored here, so no file has an id.", param=f"{place}.source.file_id"
    )
