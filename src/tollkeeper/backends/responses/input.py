"""Encodes the turns (messages) of a prompt as input items of a Responses request.

A turn of the assistant becomes one or more items, in the order of its parts: reasoning items,
messages and tool calls. Content for which the protocol has no item is rejected, because the request
would have another meaning without this content.
"""

from collections.abc import Sequence
from typing import Any

from tollkeeper.backends.conversation import Walk
from tollkeeper.backends.request_fields import (
    check_extra,
    sent_filename,
    unsupported_content,
)
from tollkeeper.backends.responses.reasoning import encrypted_fields
from tollkeeper.domain.prompt import (
    File,
    FreeObject,
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

_AUTO = "auto"


class Input(Walk):
    """Collects the instructions and the input items of one request."""

    def __init__(self, *, takes_reasoning_text: bool) -> None:
        """`takes_reasoning_text` tells whether to send reasoning that the backend has not encrypted."""
        super().__init__()
        # The text of the first turn, if this turn is a system turn that is empty or consists of a
        # single plain text.
        self.instructions: str | None = None
        self.items: list[FreeObject] = []
        self._takes_reasoning_text = takes_reasoning_text
        self._reasoning_texts = 0
        # The ids of custom tool calls. The results of these calls are items of a different type.
        self._custom_calls: set[str] = set()

    def add(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            _check_extras(turn)
        super().add(turns)
        if not self.items and self.instructions is not None:
            # The protocol requires at least one input item, so the instructions become a message.
            self._add_item("message", role="system", content=self.instructions)
            self.instructions = None

    def _add_message(self, turn: Turn) -> None:
        parts = [part for part in turn.parts if not isinstance(part, Reasoning | ToolCall)]
        is_text = not parts or (len(parts) == 1 and isinstance(parts[0], Text))
        if not is_text:
            content = [_part(part, turn.place) for part in parts]
            self._add_item("message", role=turn.role.value, content=content)
            return
        text = _joined_text(parts)
        if turn.role is Role.SYSTEM and not self.items and self.instructions is None:
            self.instructions = text
        else:
            self._add_item("message", role=turn.role.value, content=text)

    def _add_answer(self, turn: Turn) -> None:
        """Adds the items of a turn. Adjacent texts and refusals become one message."""
        adjacent: list[Part] = []
        for part in turn.parts:
            if isinstance(part, Reasoning | ToolCall):
                self._add_assistant_message(adjacent)
                adjacent = []
            match part:
                case Reasoning():
                    self._add_reasoning(part)
                case ToolCall():
                    self._add_call(part)
                case Text() | Refusal():
                    adjacent.append(part)
                case _:
                    raise unsupported_content(turn.place)
        self._add_assistant_message(adjacent)

    def _add_assistant_message(self, parts: Sequence[Part]) -> None:
        text = _joined_text(parts)
        if text:
            self._add_item("message", role="assistant", content=text)

    def _add_reasoning(self, reasoning: Reasoning) -> None:
        """Adds the reasoning of an earlier answer: the encrypted values, which only the provider that
        created them can read, or the plain text if there are none."""
        for fields in encrypted_fields(reasoning):
            self._add_item("reasoning", summary=[], **fields)
        if self._takes_reasoning_text and reasoning.text and not reasoning.sealed:
            content = [{"type": "reasoning_text", "text": reasoning.text}]
            item_id = f"rs_{self._reasoning_texts}"
            self._add_item("reasoning", id=item_id, summary=[], content=content)
            self._reasoning_texts += 1

    def _add_call(self, call: ToolCall) -> None:
        call_id = self._id_of(call, f"call_{len(self.items)}")
        if not call.legacy and call.extra:
            # The fields of a custom tool call (`type` and `custom`) are in `extra`. Other additional
            # fields are rejected.
            self._add_custom_call(call, call_id)
        else:
            fields = {"name": call.name, "arguments": call.arguments}
            self._add_item("function_call", call_id=call_id, **fields)

    def _add_custom_call(self, call: ToolCall, call_id: str) -> None:
        custom = custom_member(call.extra or {}) or {}
        name, tool_input = custom.get("name"), custom.get("input")
        if not isinstance(name, str) or not isinstance(tool_input, str):
            raise unsupported_content(call.place)
        self._custom_calls.add(call_id)
        self._add_item("custom_tool_call", call_id=call_id, name=name, input=tool_input)

    def _add_result(self, result: ToolResult, turn: Turn) -> None:
        parts = result.content
        output: str | list[FreeObject]
        if all(isinstance(part, Text | Refusal) for part in parts):
            # All servers accept a string as the output of a tool, but few accept a list.
            output = _joined_text(parts)
        else:
            output = [_part(part, turn.place) for part in parts]
        call_id = self._answered_id(result, turn)
        kind = "custom_tool_call" if call_id in self._custom_calls else "function_call"
        self._add_item(f"{kind}_output", call_id=call_id, output=output)

    def _add_item(self, kind: str, **fields: Any) -> None:
        self.items.append({"type": kind, **fields})


def _check_extras(turn: Turn) -> None:
    for part in turn.parts:
        for content in part.content if isinstance(part, ToolResult) else (part,):
            if not isinstance(content, Reasoning | ToolCall):
                place = getattr(content, "place", "") or f"{turn.place}.content"
                check_extra(content.extra, place)


def custom_member(item: FreeObject) -> FreeObject | None:
    """Returns the field `custom` of a tool, tool call or tool choice in a chat request. Returns None
    if the item does not have the type `custom`, or has fields other than these two."""
    custom = item.get("custom")
    if item.get("type") != "custom" or not isinstance(custom, dict) or len(item) != 2:
        return None
    return custom


def _joined_text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text | Refusal))


def _part(part: Part, place: str) -> FreeObject:
    match part:
        case Text() | Refusal():
            return {"type": "input_text", "text": part.text}
        case Image():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail or _AUTO}
        case File():
            fields = {
                "file_data": part.data,
                "file_id": part.id,
                "file_url": part.url,
                "filename": sent_filename(part),
            }
            return {"type": "input_file", **{name: sent for name, sent in fields.items() if sent}}
    raise unsupported_content(getattr(part, "place", "") or place)
