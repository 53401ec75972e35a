"""Tests the log-probabilities of a streamed answer that the gateway sends as one JSON result."""

import json
from typing import Any

import msgspec

from tests.support.backend_calls import make_call
from tests.support.tables import each
from tollkeeper.core.inference import Delta
from tollkeeper.core.usage import Usage
from tollkeeper.faces.chat.completion import ChatAssembly
from tollkeeper.faces.wire.chat import ChatRequest

_FIRST = {"content": [{"token": "a", "logprob": -1, "top_logprobs": []}], "refusal": None}
_SECOND = {"content": [{"token": "b"}, {"token": "c"}], "refusal": [{"token": "r"}]}


async def _joined(*pieces: Any) -> Any:
    assembly = ChatAssembly(make_call(), ChatRequest(model="m", messages=[]), 1)
    for piece in pieces:
        written = None if piece is None else msgspec.Raw(json.dumps(piece).encode())
        await assembly.take([Delta(0, text="x", logprobs=written)])
    completion = json.loads(msgspec.json.encode(assembly.completion(Usage(1, 1))))
    return completion["choices"][0]["logprobs"]


@each("piece", [None, _FIRST, {"odd": 1}, [1], "words", {}])
async def test_a_single_piece_is_passed_on_as_it_is(piece: Any) -> None:
    assert await _joined(None, piece, None) == piece


async def test_lists_are_joined_in_order() -> None:
    content = [*_FIRST["content"], *_SECOND["content"], *_FIRST["content"]]  # type: ignore[misc]
    found = await _joined(_FIRST, _SECOND, {"content": None}, _FIRST)
    assert found == {"content": content, "refusal": [{"token": "r"}]}
    assert await _joined(_FIRST, {"content": []}) == _FIRST


@each("odd", [{"content": {"a": 1}}, {"content": [], "x": "y"}, [1], "words"])
async def test_a_piece_of_another_form_does_not_cost_the_answer(odd: Any) -> None:
    """Tests that the client gets the answer, because it already costs money."""
    assert await _joined(_FIRST, odd, _SECOND) == await _joined(_FIRST, _SECOND)
    assert await _joined(odd, odd, _SECOND, {"content": []}) == _SECOND


async def test_as_many_pieces_as_tokens() -> None:
    """Tests that the time is linear. Joining all pieces again for each piece would take minutes."""
    found = await _joined(*[_FIRST] * 50_000)
    assert len(found["content"]) == 50_000
