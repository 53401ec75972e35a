"""From the items of a Responses request to the messages of a chat request.

What one answer said, in several items, is one assistant message in chat: its reasoning, its text
and its calls. The outputs of the calls follow as messages of their own.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tollkeeper.api.call_fields import ChatMessage
from tollkeeper.api.http.strict_json import decode_within
from tollkeeper.api.wire import responses as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.services.calls.options import require_modality
from tollkeeper.services.calls.reasoning_seal import KeptReasoning

# The option by which a model says that its backend takes back what only it can read.
ENCRYPTED_REASONING = "reasoning.encrypted_content"

_typed = msgspec.json.Decoder(wire.Typed)
_message = msgspec.json.Decoder(wire.InputMessage)
_function_call = msgspec.json.Decoder(wire.EchoedFunctionCall)
_function_call_output = msgspec.json.Decoder(wire.FunctionCallOutput)
_reasoning = msgspec.json.Decoder(wire.EchoedReasoning)

# Items that the published protocol has and that chat has no place for.
_ITEMS_WITHOUT_PLACE = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)


class Conversation:
    """The chat messages of a request as they come together."""

    def __init__(self, model: Model, unseal: Callable[[str], KeptReasoning | None]) -> None:
        self._model = model
        self._unseal = unseal
        self._reasons = Feature.REASONING in model.supported_features
        self._messages: list[ChatMessage] = []
        # The assistant message that following items may still belong to: the last one, or none.
        self._answer: ChatMessage | None = None
        # Reasoning that still waits for what was said or called after it.
        self._thought = ""
        self._sealed: list[str] = []
        self._call_ids: set[str] = set()
        self.images = 0

    def instruct(self, instructions: str) -> None:
        self._messages.append({"role": "system", "content": instructions})

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def add(self, item: msgspec.Raw, place: str) -> None:
        found = decode_within(item, _typed, place)
        match found.type:
            case "message":
                self._add_message(decode_within(item, _message, place), place)
            case None if found.role is not None:
                self._add_message(decode_within(item, _message, place), place)
            case "function_call":
                self._add_call(decode_within(item, _function_call, place))
            case "function_call_output":
                self._add_output(decode_within(item, _function_call_output, place), place)
            case "reasoning":
                self._add_reasoning(decode_within(item, _reasoning, place))
            case _:
                raise _refused(found.type, f"{place}.type")

    @property
    def messages(self) -> list[ChatMessage]:
        return self._messages

    def _add_message(self, message: wire.InputMessage, place: str) -> None:
        if message.role == "assistant":
            self._add_echo(message)
            return
        content = self._content(message.content, f"{place}.content")
        self._add_other({"role": message.role, "content": content})

    def _add_echo(self, message: wire.InputMessage) -> None:
        """Text of an answer. Beside calls it is part of their message; two texts are two messages."""
        text = message.content if isinstance(message.content, str) else _said(message.content)
        if self._answer is not None and "tool_calls" not in self._answer:
            self._answer = None
        answer = self._current_answer()
        answer["content"] = (answer["content"] or "") + text

    def _add_call(self, call: wire.EchoedFunctionCall) -> None:
        function = {"name": call.name, "arguments": call.arguments}
        self._current_answer().setdefault("tool_calls", []).append(
            {"id": call.call_id, "type": "function", "function": function}
        )
        self._call_ids.add(call.call_id)

    def _add_output(self, output: wire.FunctionCallOutput, place: str) -> None:
        if output.call_id not in self._call_ids:
            raise InvalidRequest(
                "No function_call before this output has its call_id.", param=f"{place}.call_id"
            )
        content = self._content(output.output, f"{place}.output")
        self._add_other({"role": "tool", "tool_call_id": output.call_id, "content": content})

    def _add_reasoning(self, reasoning: wire.EchoedReasoning) -> None:
        """The text itself, else what we sealed, else the summary. Other services' seals are left,
        and what a backend sealed goes back to that one only."""
        if not self._reasons:
            return
        sealed = reasoning.encrypted_content
        kept = None if sealed is None else self._unseal(sealed)
        text = "".join(part.text for part in reasoning.content or ())
        if not text and kept is not None:
            text = kept.text
        self._thought += text or "".join(part.text for part in reasoning.summary or ())
        takes_back = ENCRYPTED_REASONING in self._model.options
        if kept is not None and takes_back and kept.model == self._model.id:
            self._sealed += kept.sealed_by_backend

    def _add_other(self, message: ChatMessage) -> None:
        self._answer = None
        self._thought = ""
        self._sealed = []
        self._messages.append(message)

    def _current_answer(self) -> ChatMessage:
        """The answer that goes on, or a new one; reasoning goes with it under both names that
        backends read."""
        if self._answer is None:
            self._answer = {"role": "assistant", "content": None}
            self._messages.append(self._answer)
        if self._thought:
            thoughts = self._answer.get("reasoning", "") + self._thought
            self._answer["reasoning"] = self._answer["reasoning_content"] = thoughts
            self._thought = ""
        if self._sealed:
            self._answer.setdefault("sealed_reasoning", []).extend(self._sealed)
            self._sealed = []
        return self._answer

    def _content(self, content: str | list[wire.InputPart], place: str) -> str | list[Any]:
        if isinstance(content, str):
            return content
        parts = [self._part(part, f"{place}[{at}]") for at, part in enumerate(content)]
        if len(parts) == 1 and parts[0]["type"] == "text":
            only: str = parts[0]["text"]
            return only
        return parts

    def _part(self, part: wire.InputPart, place: str) -> dict[str, Any]:
        match part:
            case wire.InputImage():
                return self._image(part, place)
            case wire.InputFile():
                return self._file(part, place)
            case wire.EchoedRefusal():
                return {"type": "text", "text": part.refusal}
        return {"type": "text", "text": part.text}

    def _image(self, image: wire.InputImage, place: str) -> dict[str, Any]:
        require_modality(self._model, "image", place)
        if image.image_url is None:
            raise _without_source(image.file_id, f"{place}.file_id", f"{place}.image_url")
        self.images += 1
        source = {"url": image.image_url}
        if image.detail is not None:
            source["detail"] = image.detail
        return {"type": "image_url", "image_url": source}

    def _file(self, file: wire.InputFile, place: str) -> dict[str, Any]:
        require_modality(self._model, "file", place)
        if file.file_url is not None:
            raise OptionUnsupported(
                "A file travels in file_data: chat has no address for it.",
                param=f"{place}.file_url",
            )
        if file.file_data is None:
            raise _without_source(file.file_id, f"{place}.file_id", f"{place}.file_data")
        source = {"file_data": file.file_data}
        if file.filename is not None:
            source["filename"] = file.filename
        return {"type": "file", "file": source}


def _said(parts: list[wire.InputPart]) -> str:
    """What an answer said in words: its texts and refusals, and nothing that was not said."""
    texts = []
    for part in parts:
        match part:
            case wire.EchoedText() | wire.InputText():
                texts.append(part.text)
            case wire.EchoedRefusal():
                texts.append(part.refusal)
    return "".join(texts)


def _refused(kind: str | None, param: str) -> InvalidRequest | OptionUnsupported:
    if kind is None:
        return InvalidRequest("An item has a type, or a role if it is a message.", param=param)
    if kind == "item_reference":
        return InvalidRequest(
            "Nothing is stored here, so there is no item to refer to: send the item.", param=param
        )
    if kind in _ITEMS_WITHOUT_PLACE:
        return OptionUnsupported(f"Items of type {kind} are not supported.", param=param)
    return InvalidRequest(f"There is no item of type {kind[:100]!r}.", param=param)


def _without_source(file_id: str | None, id_param: str, data_param: str) -> InvalidRequest:
    if file_id is not None:
        return InvalidRequest("Nothing is stored here, so no file has an id.", param=id_param)
    return InvalidRequest("The content itself is missing.", param=data_param)
