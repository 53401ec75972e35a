"""The turns of a prompt as input items of a Responses request.

An assistant's turn is several items: its reasoning, its words and its calls, in their order.
Content that has no item is refused, because leaving it out would make another request.
"""

from collections.abc import Sequence
from typing import Any

from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import (
    Content,
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


class Input:
    """The input of a request as it comes together."""

    def __init__(self) -> None:
        # What the model is told before anything is said.
        self.instructions: str | None = None
        self.items: list[FreeObject] = []
        self._thoughts = 0
        # Legacy calls have no id of their own: a result belongs to the last call of its name.
        self._legacy_calls: dict[str, str] = {}

    def add(self, turns: Sequence[Turn]) -> "Input":
        for turn in turns:
            self._add_turn(turn)
        if not self.items and self.instructions is not None:
            # Instructions alone are no input.
            self._add_item("message", role="system", content=self.instructions)
            self.instructions = None
        return self

    def _add_turn(self, turn: Turn) -> None:
        if turn.name is not None:
            raise OptionUnsupported(
                "The backend's protocol has no names of speakers.", param=f"{turn.place}.name"
            )
        match turn.role:
            case Role.TOOL | Role.FUNCTION:
                for part in turn.parts:
                    self._add_result(part, turn)
            case Role.ASSISTANT:
                self._add_answer(turn)
            case _:
                self._add_words(turn)

    def _add_words(self, turn: Turn) -> None:
        parts = [part for part in turn.parts if not isinstance(part, Reasoning | ToolCall)]
        is_text = not parts or (len(parts) == 1 and _is_plain_text(parts[0]))
        if not is_text:
            content = [_part(part, turn.place) for part in parts]
            self._add_item("message", role=turn.role.value, content=content)
            return
        text = _words(parts)
        if turn.role is Role.SYSTEM and not self.items and self.instructions is None:
            self.instructions = text
        else:
            self._add_item("message", role=turn.role.value, content=text)

    def _add_answer(self, turn: Turn) -> None:
        """Words that follow each other are one message."""
        waiting: list[Part] = []
        for part in turn.parts:
            if isinstance(part, Reasoning | ToolCall):
                self._add_said(waiting)
                waiting = []
            match part:
                case Reasoning():
                    self._add_reasoning(part)
                case ToolCall():
                    self._add_call(part)
                case Text() | Refusal():
                    waiting.append(part)
                case _:
                    raise _without_item(turn.place)
        self._add_said(waiting)

    def _add_said(self, parts: Sequence[Part]) -> None:
        said = _words(parts)
        if said:
            self._add_item("message", role="assistant", content=said)

    def _add_reasoning(self, reasoning: Reasoning) -> None:
        """In the backend's own words where it has given them, else in ours."""
        for sealed in reasoning.sealed:
            self._think(encrypted_content=sealed)
        if reasoning.text and not reasoning.sealed:
            self._think(content=[{"type": "reasoning_text", "text": reasoning.text}])

    def _think(self, **fields: Any) -> None:
        self._add_item("reasoning", id=f"rs_{self._thoughts}", summary=[], **fields)
        self._thoughts += 1

    def _add_call(self, call: ToolCall) -> None:
        call_id = call.id
        if call.legacy:
            call_id = f"call_{len(self.items)}"
            self._legacy_calls[call.name] = call_id
        elif not call_id or call.extra:
            raise _without_item(call.place)
        self._add_item("function_call", call_id=call_id, name=call.name, arguments=call.arguments)

    def _add_result(self, result: Part, turn: Turn) -> None:
        if not isinstance(result, ToolResult):
            raise _without_item(turn.place)
        parts = result.content
        output: str | list[FreeObject]
        if all(isinstance(part, Text | Refusal) for part in parts):
            # Every server reads a text here, and few a list.
            output = _words(parts)
        else:
            output = [_part(part, turn.place) for part in parts]
        call_id = self._call_id(result, turn)
        self._add_item("function_call_output", call_id=call_id, output=output)

    def _call_id(self, result: ToolResult, turn: Turn) -> str:
        if turn.role is Role.FUNCTION:
            call_id = self._legacy_calls.get(result.name or "")
            if call_id is None:
                raise InvalidRequest(
                    "No function_call before this output has its name.", param=f"{turn.place}.name"
                )
            return call_id
        if not result.call_id:
            raise InvalidRequest(
                "The output of a call names the call.", param=f"{turn.place}.tool_call_id"
            )
        return result.call_id

    def _add_item(self, kind: str, **fields: Any) -> None:
        self.items.append({"type": kind, **fields})


def _is_plain_text(part: Part) -> bool:
    return isinstance(part, Text)


def _words(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text | Refusal))


def _part(part: Content | ToolResult, place: str) -> FreeObject:
    match part:
        case Text() | Refusal():
            return {"type": "input_text", "text": part.text}
        case Image():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail or _AUTO}
        case File():
            given = {
                "file_data": part.data,
                "file_id": part.id,
                "file_url": part.url,
                "filename": part.filename,
            }
            return {"type": "input_file", **{name: found for name, found in given.items() if found}}
    raise _without_item(getattr(part, "place", "") or place)


def _without_item(place: str) -> OptionUnsupported:
    return OptionUnsupported("The backend's protocol has no item for this.", param=place)
