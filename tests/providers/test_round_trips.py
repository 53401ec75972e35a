"""Tests a conversation of three turns with tools and reasoning through each native wire and back.

The provider gets back its own blocks, with their signatures, and reads the same prompt that the client
sent.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.providers.conversations import conversation, turn_of
from tests.providers.native_wires import NATIVE_WIRES
from tests.support import upstream_converse as converse
from tests.support import upstream_gemini as gemini
from tests.support import upstream_messages as messages
from tests.support.backend_calls import make_config
from tollkeeper.core.prompt import Image, Part, Reasoning, Role, Text, ToolCall, ToolResult, Turn
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.wire import Wire
from tollkeeper.providers.wires import wire_for

_Blocks = list[dict[str, Any]]


def _messages_user(block: dict[str, Any]) -> Part:
    match block["type"]:
        case "text":
            return Text(block["text"])
        case "tool_result":
            content = block["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            inner = tuple(_messages_user(part) for part in parts)
            return ToolResult(inner, block["tool_use_id"])  # type: ignore[arg-type]
    source = block["source"]
    return Image(f"data:{source['media_type']};base64,{source['data']}")


def _converse_user(block: dict[str, Any]) -> Part:
    if "text" in block:
        return Text(block["text"])
    if "toolResult" in block:
        inner = tuple(_converse_user(part) for part in block["toolResult"]["content"])
        return ToolResult(inner, block["toolResult"]["toolUseId"])  # type: ignore[arg-type]
    image = block["image"]
    return Image(f"data:image/{image['format']};base64,{image['source']['bytes']}")


def _gemini_user(part: dict[str, Any]) -> Part:
    if "text" in part:
        return Text(part["text"])
    if "functionResponse" in part:
        response = part["functionResponse"]
        media = tuple(_gemini_user(inner) for inner in response.get("parts", ()))
        content = (Text(response["response"]["output"]), *media)
        return ToolResult(content, response["id"])  # type: ignore[arg-type]
    inline = part["inlineData"]
    return Image(f"data:{inline['mimeType']};base64,{inline['data']}")


@dataclass(frozen=True)
class Conversing:
    """Contains a provider's answers in three turns, and the functions that read requests to it."""

    answers: tuple[_Blocks, ...]
    whole: Callable[..., dict[str, Any]]
    # The field names of the messages and of their content, and the role of the model.
    names: tuple[str, str, str]
    system: Callable[[Any], str]
    user: Callable[[dict[str, Any]], Part]


_MESSAGES = Conversing(
    answers=(
        [
            messages.thinking_block("Hm.", "c2lnMQ=="),
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
            messages.text_block("I look."),
            messages.tool_block("c1", "weather", place="Paris"),
            messages.tool_block("c2", "weather", place="Rome"),
        ],
        [messages.thinking_block("It is wet.", "c2lnMg=="), messages.text_block("Wet and dry.")],
        [messages.text_block("Yes.")],
    ),
    whole=messages.whole_message,
    names=("messages", "content", "assistant"),
    system=lambda body: str(body["system"]),
    user=_messages_user,
)
_CONVERSING = {
    "messages": _MESSAGES,
    "bedrock_messages": _MESSAGES,
    "gemini": Conversing(
        answers=(
            [
                gemini.text_part("I look."),
                gemini.call_part("c1", "weather", "c2lnMQ==", place="Paris"),
                gemini.call_part("c2", "weather", place="Rome"),
            ],
            [
                gemini.thought_part("It is wet.", "c2lnMg=="),
                gemini.text_part("Wet and dry.", "c2lnMw=="),
            ],
            [gemini.text_part("Yes."), gemini.text_part("", "c2lnNA==")],
        ),
        whole=gemini.whole,
        names=("contents", "parts", "model"),
        system=lambda body: str(body["systemInstruction"]["parts"][0]["text"]),
        user=_gemini_user,
    ),
    "converse": Conversing(
        answers=(
            [
                converse.reasoning_block("Hm.", "c2lnMQ=="),
                converse.redacted_block("aGlkZGVu"),
                converse.text_block("I look."),
                converse.use_block("c1", "weather", place="Paris"),
                converse.use_block("c2", "weather", place="Rome"),
            ],
            [
                converse.reasoning_block("It is wet.", "c2lnMg=="),
                converse.text_block("Wet and dry."),
            ],
            [converse.text_block("Yes.")],
        ),
        whole=converse.whole_answer,
        names=("messages", "content", "assistant"),
        system=lambda body: str(body["system"][0]["text"]),
        user=_converse_user,
    ),
}
EACH = pytest.mark.parametrize("name", _CONVERSING)


def _wire(name: str) -> Wire:
    return wire_for(make_config("http://a/v1", protocol=WireProtocol(name)))


def _read(name: str, blocks: _Blocks) -> Turn:
    body = json.dumps(_CONVERSING[name].whole(*blocks)).encode()
    call = NATIVE_WIRES[name].call()
    return turn_of(_wire(name).read_whole(call, body, secrets=()).events)


def _sent(name: str, turns: tuple[Turn, ...]) -> Any:
    call = NATIVE_WIRES[name].call()
    prompt = msgspec.structs.replace(call.prompt, turns=turns, texts=None, written=None)
    changed = msgspec.structs.replace(call, prompt=prompt)
    return json.loads(_wire(name).encode_request(changed, stream=False, extra={}))


def _read_back(name: str, body: Any) -> list[Turn]:
    """Returns the turns of a request as the provider understands them."""
    conversing = _CONVERSING[name]
    outer, inner, model = conversing.names
    turns = [Turn(Role.SYSTEM, (Text(conversing.system(body)),))]
    for message in body[outer]:
        blocks = message[inner]
        if message["role"] == model:
            turns.append(_read(name, blocks))
            continue
        parts = [conversing.user(block) for block in blocks]
        turns += [Turn(Role.TOOL, (part,)) for part in parts if isinstance(part, ToolResult)]
        rest = tuple(part for part in parts if not isinstance(part, ToolResult))
        if rest:
            turns.append(Turn(Role.USER, rest))
    return turns


def _plain(turn: Turn) -> Turn:
    parts = [
        msgspec.structs.replace(part, arguments=json.loads(part.arguments))
        if isinstance(part, ToolCall)
        else part
        for part in turn.parts
    ]
    return Turn(turn.role, tuple(parts))


@EACH
def test_the_same_turns_come_back(name: str) -> None:
    conversing = _CONVERSING[name]
    turns = conversation([_read(name, blocks) for blocks in conversing.answers])
    body = _sent(name, turns)
    outer, inner, model = conversing.names
    said = [message[inner] for message in body[outer] if message["role"] == model]
    assert said == list(conversing.answers)
    assert [message["role"] for message in body[outer]] == ["user", model] * 3 + ["user"]
    assert [_plain(turn) for turn in _read_back(name, body)] == [_plain(turn) for turn in turns]


@EACH
def test_reasoning_of_another_backend_is_left_out(name: str) -> None:
    """Sealed reasoning from the provider of another wire is not sent to this wire's provider."""
    others = [other for other in _CONVERSING if _CONVERSING[other] is not _CONVERSING[name]]
    sealed = [
        value
        for other in others
        for part in _read(other, _CONVERSING[other].answers[1]).parts
        if isinstance(part, Reasoning)
        for value in part.sealed
    ]
    assert sealed
    foreign = Reasoning("Hm.", (*sealed, "gAAAAAB", "{}", "[1]"))
    answers = [Turn(Role.ASSISTANT, (foreign, Text("Wet and dry.")))]
    turns = (Turn(Role.USER, (Text("Hi"),)), *answers, Turn(Role.USER, (Text("Sure?"),)))
    written = json.dumps(_sent(name, turns))
    assert "c2ln" not in written
    assert "Wet and dry." in written
