"""Helpers that create a conversation with three answers and tools, as a client sends it back."""

import msgspec

from tollkeeper.core.inference import Delta, Event
from tollkeeper.core.prompt import Image, Part, Reasoning, Role, Text, ToolCall, ToolResult, Turn


def turn_of(events: list[Event]) -> Turn:
    """Returns the answer as a client sends it back: reasoning with its sealed values, text and tool calls."""
    deltas = [event for event in events if isinstance(event, Delta)]
    thought = "".join(delta.reasoning or "" for delta in deltas)
    sealed = tuple(delta.sealed_reasoning for delta in deltas if delta.sealed_reasoning)
    text = "".join(delta.text or "" for delta in deltas)
    calls: dict[int, ToolCall] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        known = calls.get(piece.index) or ToolCall(piece.id, piece.name or "", "")
        arguments = known.arguments + piece.arguments
        calls[piece.index] = msgspec.structs.replace(known, arguments=arguments)
    parts: list[Part] = [Reasoning(thought, sealed), Text(text), *calls.values()]
    return Turn(Role.ASSISTANT, tuple(parts))


def conversation(answers: list[Turn]) -> tuple[Turn, ...]:
    image = Image("data:image/png;base64,iVBORw0KGgo=")
    return (
        Turn(Role.SYSTEM, (Text("Be brief."),)),
        Turn(Role.USER, (Text("Paris and Rome?"), image)),
        answers[0],
        Turn(Role.TOOL, (ToolResult((Text("wet"),), "c1"),)),
        Turn(Role.TOOL, (ToolResult((Text("dry"), image), "c2"),)),
        answers[1],
        Turn(Role.USER, (Text("Sure?"),)),
        answers[2],
        Turn(Role.USER, (Text("Thanks."),)),
    )
