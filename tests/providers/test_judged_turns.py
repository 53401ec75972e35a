"""Tests that the judge reads the texts as a backend receives them: texts that a wire makes adjacent are
joined, and other texts are not."""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_call, make_config
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.prompt import Part, Prompt, Reasoning, Role, Text, ToolCall, ToolResult, Turn
from tollkeeper.policies.texts.transcript import transcript
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.wires import wire_for
from tollkeeper.setup import build_catalog
from tollkeeper.setup.settings import Settings

_URL = "http://127.0.0.1:9/v1"
_MARKS = re.compile(r"(?:<\d+>)+")
_ROLES = [Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT]


def _model(*protocols: str) -> Model:
    """Returns a model that backends with these protocols serve."""
    backends = [
        {"name": name, "protocol": name, "urls": [_URL], "tokenize_path": "none"}
        for name in protocols
    ]
    model = {
        "id": "m",
        "backend": protocols[0],
        "upstream_model": "u",
        "context_length": 100_000,
        "max_output_length": 1000,
        "supported_features": ["tools", "reasoning"],
        "pricing": {"prompt": "0.000001", "completion": "0.000001"},
        "alternatives": [{"backend": name} for name in protocols[1:]],
    }
    settings = Settings.model_validate({"backends": backends, "models": [model]})
    (found,) = build_catalog(settings).models
    return found


def _judged(turns: list[Turn], model: Model) -> list[str]:
    """Returns the lines of the transcript that contain marks such as `<3>`."""
    lines = transcript(Prompt(turns=tuple(turns)), model).text.splitlines()
    return [line for line in lines if _MARKS.fullmatch(line)]


def _received(body: dict[str, Any]) -> Iterator[str]:
    """Yields the adjacent texts of each message in a request, joined."""
    system = body.get("system") or body.get("systemInstruction", {}).get("parts", ())
    yield from _joined(system)
    for message in body.get("messages") or body.get("contents") or body.get("input", ()):
        yield from _joined(message.get("content") or message.get("parts") or ())
        yield from _joined(message.get("output") or ())
    yield from _joined(body.get("instructions") or ())


def _joined(blocks: Any) -> Iterator[str]:
    if isinstance(blocks, str):
        yield blocks
        return
    texts = [block.get("text") for block in blocks]
    yield from (
        "".join(run) for is_text, run in groupby(texts, lambda text: text is not None) if is_text
    )
    for block in blocks:
        if block.get("type") == "tool_result":
            yield from _joined(block.get("content", ""))
        elif "toolResult" in block:
            yield from _joined(block["toolResult"]["content"])
        elif "functionResponse" in block:
            yield block["functionResponse"]["response"]["output"]


class _Conversation:
    """Draws turns whose texts are marks, each with its own number."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._marks = 0
        self._calls = 0
        self.turns: list[Turn] = []
        for _ in range(draw(st.integers(1, 5))):
            if draw(st.integers(0, 5)) == 0:
                self._add_tool()
            else:
                self._add(draw(st.sampled_from(_ROLES)))

    def _text(self) -> Text:
        self._marks += 1
        return Text(f"<{self._marks}>" if self._draw(st.integers(0, 3)) else "")

    def _add(self, role: Role) -> None:
        parts: list[Part] = [self._text() for _ in range(self._draw(st.integers(0, 2)))]
        if role is Role.ASSISTANT and self._draw(st.booleans()):
            parts.insert(0, Reasoning("Well."))
        if role is Role.USER:
            parts.append(Text("<0>"))  # A user's message must not be empty.
        self.turns.append(Turn(role, tuple(parts)))

    def _add_tool(self) -> None:
        self._calls += 1
        name = f"c{self._calls}"
        self.turns.append(Turn(Role.ASSISTANT, (self._text(), ToolCall(name, "look", "{}"))))
        self.turns.append(Turn(Role.TOOL, (ToolResult((self._text(), self._text()), name),)))


@st.composite
def _conversations(draw: st.DrawFn) -> list[Turn]:
    return _Conversation(draw).turns


# The chat wire sends a chat client's own messages.
_PROTOCOLS = [protocol for protocol in WireProtocol if protocol is not WireProtocol.CHAT]


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_the_judge_reads_the_texts_that_a_backend_receives(protocol: WireProtocol) -> None:
    wire, model = wire_for(make_config(_URL, protocol=protocol)), _model(protocol.value)

    @given(_conversations())
    def check(turns: list[Turn]) -> None:
        call = make_call(catalog_model=model)
        call = msgspec.structs.replace(call, prompt=Prompt(turns=tuple(turns)))
        with contextlib.suppress(InvalidRequest, OptionUnsupported):
            body = json.loads(wire.encode_request(call, stream=False, extra={}))
            received = [text for text in _received(body) if _MARKS.fullmatch(text)]
            assert sorted(_judged(turns, model)) == sorted(received)

    check()


def _said(role: Role, text: str) -> Turn:
    return Turn(role, (Text(text),))


_SPLIT = [_said(Role.USER, "<1>"), _said(Role.USER, "<2>")]


def test_a_chat_backend_receives_turns_apart() -> None:
    assert _judged(_SPLIT, _model("chat")) == ["<1>", "<2>"]


@pytest.mark.parametrize("protocols", [("chat", "messages"), ("gemini", "chat")])
def test_both_forms_are_judged_if_the_backends_differ(protocols: tuple[str, ...]) -> None:
    """Joining could also hide a word that one of the turns contains."""
    apart = [_said(Role.USER, "<1>"), _said(Role.ASSISTANT, "<2>"), _said(Role.USER, "<3>")]
    assert _judged(_SPLIT, _model(*protocols)) == ["<1>", "<2>", "<1><2>"]
    assert _judged(apart, _model(*protocols)) == ["<1>", "<2>", "<3>"]


def test_backends_that_all_join_turns_need_one_form() -> None:
    assert _judged(_SPLIT, _model("messages", "converse")) == ["<1><2>"]
    assert _judged(_SPLIT, replace(_model("messages"), joins_turns=False)) == ["<1>", "<2>"]
