"""Turns the items of a Responses request into turns.

One earlier answer's items (reasoning, messages, function calls) become one turn. The outputs of the
called functions follow as turns of their own.
"""

from collections.abc import Callable

import msgspec

from tollkeeper.calls.reasoning_seal import KeptReasoning
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.prompt import (
    Content,
    File,
    Image,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from tollkeeper.faces.responses.namespaces import flat_name
from tollkeeper.faces.strict_json import decode_within
from tollkeeper.faces.wire import responses as wire

_item_type = msgspec.json.Decoder(wire.ItemType)
_message = msgspec.json.Decoder(wire.InputMessage)
_function_call = msgspec.json.Decoder(wire.EchoedFunctionCall)
_function_call_output = msgspec.json.Decoder(wire.FunctionCallOutput)
_reasoning = msgspec.json.Decoder(wire.EchoedReasoning)

# OpenAI's protocol has them, but a prompt can't represent them.
_UNSUPPORTED_ITEMS = frozenset(
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
    def __init__(self, model: Model, unseal: Callable[[str], KeptReasoning | None]) -> None:
        self._model = model
        self._unseal = unseal
        self._model_reasons = Feature.REASONING in model.supported_features
        self._turns: list[Turn] = []
        # The current assistant turn, to which the next items may add.
        self._answer: list[Part] = []
        # For the next message or function call.
        self._pending_reasoning: list[Reasoning] = []
        self._answer_place = ""
        # The current assistant turn has a message, or a function call.
        self._answer_has_text = self._answer_has_calls = False
        self._call_ids: set[str] = set()

    def instruct(self, instructions: str) -> None:
        self._turns.append(Turn(Role.SYSTEM, (Text(instructions),), place="instructions"))

    def say(self, text: str) -> None:
        self._turns.append(Turn(Role.USER, (Text(text),), place="input"))

    def add(self, item: msgspec.Raw, place: str) -> None:
        head = decode_within(item, _item_type, place)
        match head.type:
            case "message":
                self._add_message(decode_within(item, _message, place), place)
            case None if head.role is not None:
                self._add_message(decode_within(item, _message, place), place)
            case "function_call":
                self._add_call(decode_within(item, _function_call, place), place)
            case "function_call_output":
                self._add_output(decode_within(item, _function_call_output, place), place)
            case "reasoning":
                self._add_reasoning(decode_within(item, _reasoning, place))
            case _:
                raise _unknown_item(head.type, f"{place}.type")

    def turns(self) -> tuple[Turn, ...]:
        self._end_answer()
        return tuple(self._turns)

    def _add_message(self, message: wire.InputMessage, place: str) -> None:
        if message.role == "assistant":
            self._add_answer_text(message, place)
            return
        content = _content(message.content, f"{place}.content")
        self._add_turn(Turn(Role(message.role), content, place=place))

    def _add_answer_text(self, message: wire.InputMessage, place: str) -> None:
        """To the current assistant turn, which may have function calls. Without any, a second
        message begins another turn, unless a backend's sealed reasoning is between the two: they're
        then from the same answer, and the sealed value may refer to its whole text."""
        is_same_answer = any(part.sealed for part in self._pending_reasoning)
        if self._answer_has_text and not self._answer_has_calls and not is_same_answer:
            self._end_answer()
        parts = _answer_text(message.content)
        # A message without text still becomes a part.
        self._extend_answer(parts or (Text(""),), place)
        self._answer_has_text = True

    def _add_call(self, call: wire.EchoedFunctionCall, place: str) -> None:
        name = call.name if call.namespace is None else flat_name(call.namespace, call.name)
        self._extend_answer((ToolCall(call.call_id, name, call.arguments, place),), place)
        self._answer_has_calls = True
        self._call_ids.add(call.call_id)

    def _add_output(self, output: wire.FunctionCallOutput, place: str) -> None:
        if output.call_id not in self._call_ids:
            raise InvalidRequest(
                "No function_call item before this output has the same call_id.",
                param=f"{place}.call_id",
            )
        content = _content(output.output, f"{place}.output")
        result = ToolResult(content, output.call_id)
        self._add_turn(Turn(Role.TOOL, (result,), place=place))

    def _add_reasoning(self, reasoning: wire.EchoedReasoning) -> None:
        """Nothing if the model can't reason. Otherwise the plain text if there is one, then what
        the gateway sealed, then the summary. What another service or project sealed is ignored, and
        a backend's sealed values only go to the model that wrote them."""
        if not self._model_reasons:
            return
        encrypted = reasoning.encrypted_content
        unsealed = None if encrypted is None else self._unseal(encrypted)
        text = "".join(part.text for part in reasoning.content or ())
        if not text and unsealed is not None:
            text = unsealed.text
        text = text or "".join(part.text for part in reasoning.summary or ())
        sealed_by_backend = () if unsealed is None else unsealed.sealed_for(self._model)
        if text or sealed_by_backend:
            self._pending_reasoning.append(Reasoning(text, sealed_by_backend))

    def _extend_answer(self, parts: tuple[Part, ...], place: str) -> None:
        self._answer_place = self._answer_place or place
        self._answer += (*self._pending_reasoning, *parts)
        self._pending_reasoning = []

    def _end_answer(self) -> None:
        if self._answer:
            parts = tuple(self._answer)
            self._turns.append(Turn(Role.ASSISTANT, parts, place=self._answer_place))
        self._answer = []
        self._answer_place = ""
        self._answer_has_text = self._answer_has_calls = False

    def _add_turn(self, turn: Turn) -> None:
        """Drops pending reasoning, because nothing of the same answer follows. What a backend
        sealed stays if the answer has other parts, because it may belong to them."""
        if self._answer:
            self._answer += [part for part in self._pending_reasoning if part.sealed]
        self._end_answer()
        self._pending_reasoning = []
        self._turns.append(turn)


def _content(content: str | list[wire.InputPart], place: str) -> tuple[Content, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, f"{place}[{at}]") for at, part in enumerate(content))


def _part(part: wire.InputPart, place: str) -> Content:
    match part:
        case wire.InputImage():
            if part.image_url is None:
                raise _missing_data(part.file_id, f"{place}.file_id", f"{place}.image_url")
            return Image(part.image_url, part.detail, place)
        case wire.InputFile():
            return _file(part, place)
        case wire.EchoedRefusal():
            return Refusal(part.refusal)
    return Text(part.text)


def _file(file: wire.InputFile, place: str) -> File:
    if file.file_url is not None:
        raise OptionUnsupported(
            "Files by URL are not supported: send the content in file_data.",
            param=f"{place}.file_url",
        )
    if file.file_data is None:
        raise _missing_data(file.file_id, f"{place}.file_id", f"{place}.file_data")
    return File(data=file.file_data, filename=file.filename, place=place)


def _answer_text(content: str | list[wire.InputPart]) -> tuple[Content, ...]:
    """Texts and refusals, but no images or files."""
    if isinstance(content, str):
        return (Text(content),)
    parts: list[Content] = []
    for part in content:
        match part:
            case wire.EchoedText() | wire.InputText():
                parts.append(Text(part.text))
            case wire.EchoedRefusal():
                parts.append(Refusal(part.refusal))
    return tuple(parts)


def _unknown_item(kind: str | None, param: str) -> InvalidRequest | OptionUnsupported:
    if kind is None:
        return InvalidRequest("An item needs a type, or a role if it is a message.", param=param)
    if kind == "item_reference":
        return InvalidRequest(
            "The gateway does not store items: send the item itself.", param=param
        )
    if kind in _UNSUPPORTED_ITEMS:
        return OptionUnsupported(f"Items of type {kind} are not supported.", param=param)
    return InvalidRequest(f"There is no item of type {kind[:100]!r}.", param=param)


def _missing_data(file_id: str | None, id_param: str, data_param: str) -> InvalidRequest:
    if file_id is not None:
        return InvalidRequest(
            "The gateway does not store files, so file ids do not exist: send the content.",
            param=id_param,
        )
    return InvalidRequest("The content is missing.", param=data_param)
