"""Tests that a conversation with tools and reasoning is unchanged after the Messages wire has encoded it and
the Messages face has decoded it."""

from dataclasses import replace

import msgspec

from tests.providers.anthropic.calls import CLAUDE, claude_call, sent
from tests.support.upstream_messages import thinking_block
from tollkeeper.core.prompt import Image, Part, Reasoning, Role, Text, ToolCall, ToolResult, Turn
from tollkeeper.faces.messages.input import MessagesConversation
from tollkeeper.faces.wire import messages as wire
from tollkeeper.providers.anthropic.request import signed_blocks
from tollkeeper.providers.claude_thinking import sealed_block

_THOUGHTS = [thinking_block(f"Thought {number}.", f"c2ln{number}") for number in range(3)]


def _reasoning(number: int) -> Reasoning:
    block = _THOUGHTS[number]
    return Reasoning(block["thinking"], (sealed_block(block),))


def _call(number: int, place: str) -> ToolCall:
    return ToolCall(f"toolu_{number}", "weather", f'{{"place":"{place}"}}')


def _result(number: int, *content: Text | Image) -> Turn:
    return Turn(Role.TOOL, (ToolResult(content, f"toolu_{number}"),))


_TURNS = (
    Turn(Role.SYSTEM, (Text("Be brief."),)),
    Turn(Role.USER, (Text("Paris and Rome?"), Image("data:image/png;base64,iVBORw0KGgo="))),
    Turn(
        Role.ASSISTANT,
        (_reasoning(0), Text("I look."), _call(1, "Paris"), _call(2, "Rome")),
    ),
    _result(1, Text("wet")),
    _result(2, Text("dry"), Image("https://a.example/rome.png")),
    Turn(Role.USER, (Text("Go on."),)),
    Turn(Role.ASSISTANT, (_reasoning(1), Text("Wet and dry."))),
    Turn(Role.USER, (Text("Sure?"),)),
    Turn(Role.ASSISTANT, (_reasoning(2), Text("Yes."))),
    Turn(Role.USER, (Text("Thanks."),)),
)


def _read_back(body: dict[str, object]) -> list[Turn]:
    """Returns the turns of a Messages request as the gateway's Messages face reads them."""
    model = replace(CLAUDE, supported_features=("reasoning", "tools"))
    conversation = MessagesConversation(model, lambda _: None, for_token_count=True)
    request = msgspec.json.decode(msgspec.json.encode(body), type=wire.TokenCountRequest)
    conversation.instruct(request.system or "")
    for message in request.messages:
        conversation.add(message, "")
    return conversation.turns


def _without_places(turn: Turn) -> Turn:
    """Removes places, and also signatures, which the face ignores when it counts tokens."""
    parts: list[Part] = []
    for part in turn.parts:
        match part:
            case ToolResult():
                content = tuple(
                    _plain(inner) for inner in part.content if not isinstance(inner, Reasoning)
                )
                parts.append(ToolResult(content, part.call_id))
            case Reasoning():
                parts.append(Reasoning(part.text))
            case ToolCall():
                parts.append(msgspec.structs.replace(part, place=""))
            case _:
                parts.append(_plain(part))
    return Turn(turn.role, tuple(parts))


def _plain(part: object) -> Text | Image:
    assert isinstance(part, Text | Image)
    return msgspec.structs.replace(part, place="") if isinstance(part, Image) else part


def test_the_same_turns_come_back() -> None:
    call = claude_call()
    call = msgspec.structs.replace(
        call, prompt=msgspec.structs.replace(call.prompt, turns=_TURNS, texts=None, written=None)
    )
    body = sent(call)
    sent_blocks = [block for message in body["messages"] for block in message["content"]]
    assert [block for block in sent_blocks if block["type"] == "thinking"] == _THOUGHTS
    only_counted = {name: body[name] for name in ("model", "messages", "system")}
    read = [_without_places(turn) for turn in _read_back(only_counted)]
    assert read == [_without_places(turn) for turn in _TURNS]


def test_values_of_other_backends_are_left_out() -> None:
    foreign = ("gAAAAAB", "{}", "[1]", '{"type": "text", "text": "x"}', sealed_block(_THOUGHTS[0]))
    assert signed_blocks(Reasoning("", foreign)) == [_THOUGHTS[0]]
