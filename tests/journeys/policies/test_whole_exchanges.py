"""Tests that the judge sees all fields of an answer that a client can read, such as log-probabilities
and ids of tool calls, and every digit of a request; and that a response policy hides a provider's
error text."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.responses_answers import respond
from tests.support.scripted_gateway import COST
from tests.support.upstream import (
    DONE,
    Verb,
    answer,
    chunk,
    completion,
    refuse,
    sse,
    stream,
    usage_chunk,
)

BOTH = pytest.mark.parametrize("streamed", [False, True])
_PIECES = ("bo", "mb")


def _token(token: str, **fields: Any) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), **fields}


def _positions(**fields: Any) -> list[dict[str, Any]]:
    """Returns the log-probabilities of the answer "Hello", with `fields` at each of its tokens. If a
    field is a function, it is called with "bo" at the first token and with "mb" at the second token."""
    return [
        _token(
            said,
            **{
                name: _filled(value, piece)
                for name, value in {"top_logprobs": [], **fields}.items()
            },
        )
        for said, piece in zip(("Hel", "lo"), _PIECES, strict=True)
    ]


def _filled(value: Any, piece: str) -> Any:
    return value(piece) if callable(value) else value


LOGPROBS = {
    "second alternative": _positions(
        top_logprobs=lambda piece: [_token("Hel"), _token(piece)],
    ),
    "bytes": _positions(bytes=lambda piece: list(piece.encode())),
    "bytes of an alternative": _positions(
        top_logprobs=lambda piece: [{**_token("x"), "bytes": list(piece.encode())}],
    ),
    "another field": _positions(text=lambda piece: piece),
    "names of fields": _positions(top=lambda piece: {piece: -1.5}),
    "tokens": [_token(piece, top_logprobs=[]) for piece in _PIECES],
}


@pytest.fixture(scope="module")
async def shared_logprobs(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    model = {
        "supported_features": ["tools", "logprobs", "reasoning", "structured_outputs"],
        "options": {"prompt_logprobs": "prompt_logprobs"},
        "context_length": 1_000_000,
    }
    async with judged_gateway(data_dir, conninfo, model=model) as running:
        yield running


@pytest.fixture
async def judged(shared_logprobs: JudgedGateway) -> JudgedGateway:
    return await shared_logprobs.for_next_test()


def _said(logprobs: list[dict[str, Any]], where: str = "content") -> Verb:
    """Answers "Hello" with the log-probabilities, as one piece or streamed token by token."""
    whole = completion("Hello")
    whole["choices"][0]["logprobs"] = {where: logprobs}
    pieces = []
    for text, position in zip(("Hel", "lo"), logprobs, strict=True):
        piece = chunk(text)
        piece["choices"][0]["logprobs"] = {where: [position]}
        pieces.append(sse(piece))
    streamed = stream([*pieces, sse(chunk(finish="stop")), sse(usage_chunk()), DONE])

    async def verb(peer: Any) -> None:
        await (streamed if peer.request.json.get("stream") else answer(whole))(peer)

    return verb


@BOTH
@pytest.mark.parametrize("where", LOGPROBS)
async def test_logprobs_are_judged(judged: JudgedGateway, where: str, streamed: bool) -> None:
    policy = await judged.enforce(direction="response")
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "stream": streamed}
    judged.model.play(_said(LOGPROBS[where]))
    found = await judged.chat(**asked)
    assert_denied(found, policy, "response")
    assert (await judged.scripted.entry_of(found)).cost == COST
    judged.model.play(_said(LOGPROBS[where], "refusal"))
    assert_denied(await judged.chat(**asked), policy, "response")
    include = ["message.output_text.logprobs"]
    judged.model.play(_said(LOGPROBS[where]))
    asked = {"include": include, "top_logprobs": 2, "stream": streamed}
    assert_denied(await respond(judged.scripted, **asked), policy, "response")


@BOTH
async def test_logprobs_that_only_repeat_the_answer_add_nothing(
    judged: JudgedGateway, streamed: bool
) -> None:
    await judged.enforce(direction="response")
    judged.model.play(_said(_positions()))
    found = await judged.chat(logprobs=True, stream=streamed)
    assert found.status_code == 200, found.text
    assert judged.judge.texts == ["Hello"]


async def test_logprobs_of_the_prompt_are_judged(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="response")
    whole = completion("Hello")
    whole["prompt_logprobs"] = [
        None,
        *({"7": {"logprob": -1.0, "decoded_token": piece}, "9": {}} for piece in _PIECES),
    ]
    judged.model.play(answer(whole))
    assert_denied(await judged.chat(prompt_logprobs=1), policy, "response")


@BOTH
async def test_ids_of_tool_calls_are_judged(judged: JudgedGateway, streamed: bool) -> None:
    policy = await judged.enforce(direction="response")
    call = {
        "index": 0,
        "id": "a bomb",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    whole = completion("")
    whole["choices"][0]["message"]["tool_calls"] = [call]
    pieces = [chunk(delta={"tool_calls": [call]}), chunk(finish="tool_calls"), usage_chunk()]
    judged.model.play(stream([*map(sse, pieces), DONE]) if streamed else answer(whole))
    assert_denied(await judged.chat(stream=streamed), policy, "response")


def _refused(message: str) -> Verb:
    return refuse(400, message)


@BOTH
@pytest.mark.parametrize("call", ["chat", "responses"])
async def test_an_error_text_of_the_provider_is_not_shown(
    judged: JudgedGateway, call: str, streamed: bool
) -> None:
    """A response policy hides the error text. The judge is not asked, because there is no answer."""
    judged.model.play(_refused("The prompt is a bomb."))

    async def refused() -> Any:
        found = await (
            judged.chat(stream=streamed)
            if call == "chat"
            else respond(judged.scripted, stream=streamed)
        )
        assert_error(found, 422, "unprocessable")
        assert (await judged.scripted.entry_of(found)).status == "released"
        return found.json()["error"]["message"]

    policies = [
        await judged.publish("war", mode="monitoring"),
        await judged.enforce("war", direction="request"),
    ]
    assert await refused() == "The prompt is a bomb."
    for policy in policies:
        await judged.change("pause", policy)
    judged.judge.asked.clear()
    await judged.enforce("peace", direction="response")
    message = await refused()
    assert "bomb" not in message
    assert "policy" in message
    assert judged.judge.asked == []


_DIGITS = "0.98111109098981111090989811110909898111109098"


_USER = '"messages": [{"role": "user", "content": "Hi"}], '
_PLACES = {
    "arguments": """
        "messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
        "function": {"name": "look", "arguments": {"at": NUMBER}}}]},
        {"role": "user", "content": "Hi"}]
    """,
    "part": """
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "at": NUMBER}]}]
    """,
    "tool": f"""
        {_USER} "tools": [{{"type": "function", "function":
        {{"name": "look", "parameters": {{"type": "object", "minimum": NUMBER}}}}}}]
    """,
    "schema": f"""
        {_USER} "response_format": {{"type": "json_schema",
        "json_schema": {{"name": "x", "schema": {{"maximum": NUMBER}}}}}}
    """,
}


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("number", [_DIGITS, f"-{_DIGITS}e-7", f"{_DIGITS[2:]}.5", _DIGITS[2:]])
async def test_the_judge_sees_every_digit_that_is_sent(
    judged: JudgedGateway, place: str, number: str
) -> None:
    policy = await judged.enforce(number, direction="request")
    content = '{"model": "example/chat", ' + _PLACES[place].replace("NUMBER", number) + "}"
    assert_denied(await judged.scripted.send(content.encode()), policy, "request")
    await judged.change("pause", policy)
    assert (await judged.scripted.send(content.encode())).status_code == 200
    assert number.encode() in judged.model.requests[-1].body
