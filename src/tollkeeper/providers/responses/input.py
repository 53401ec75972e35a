"""Encodes a prompt's turns as input items of a Responses request. An assistant's turn becomes items
in the order of its parts. Content without an item in the protocol is rejected, because without it
the request would mean something else."""

from collections.abc import Sequence
from typing import Any

from tollkeeper.core.prompt import (
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
from tollkeeper.providers.conversation import Walk
from tollkeeper.providers.request_fields import check_extra, sent_filename, unsupported_content
from tollkeeper.providers.responses.reasoning import encrypted_fields

_AUTO = "auto"


class Input(Walk):
    def __init__(self, *, takes_reasoning_text: bool) -> None:
        """`takes_reasoning_text`: sends reasoning that the backend hasn't encrypted."""
        super().__init__()
        # Of the first turn, if it's a system turn, empty or of one plain text.
        self.instructions: str | None = None
        self.items: list[FreeObject] = []
        self._takes_reasoning_text = takes_reasoning_text
        self._reasoning_texts = 0
        # Their results are items of another type.
        self._custom_calls: set[str] = set()

    def add(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            _check_extras(turn)
        super().add(turns)
        if not self.items and self.instructions is not None:
            # At least one item is required.
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
        """Adjacent texts and refusals become one message."""
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
        """Encrypted values, which only their provider can read, or plain text without them."""
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
            # `type` and `custom` are in `extra`. Other additional fields are rejected.
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
            # All servers accept a string, few a list.
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
    """In a chat tool, tool call or tool choice. None for other types, or with further fields."""
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
