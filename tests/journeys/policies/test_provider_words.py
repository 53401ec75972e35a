"""Tests that a backend's words that no policy judges reach clients only if the gateway knows them."""

from typing import Any

import pytest

from tests.support.judged_gateway import JudgedGateway
from tests.support.responses_answers import respond
from tests.support.upstream import (
    DONE,
    USAGE,
    Verb,
    answer,
    chunk,
    completion,
    sse,
    stream,
    usage_chunk,
)

BOTH = pytest.mark.parametrize("streamed", [False, True])
_WORDS = {"system_fingerprint": "fp_bomb", "service_tier": "a bomb"}
_DETAILS = {"cached_tokens": 1, "bomb": 2, "cached": {"bomb": 3}}
_USAGE = {**USAGE, "prompt_tokens_details": _DETAILS, "completion_tokens_details": {"bomb": 4}}
_KNOWN = {"system_fingerprint": "fp_44709d6fcb", "service_tier": "priority"}


def _answer(words: dict[str, Any], usage: dict[str, Any], finish: str, *, streamed: bool) -> Verb:
    if not streamed:
        body = completion("Hello", usage=usage, **words)
        body["choices"][0]["finish_reason"] = finish
        return answer(body)
    records = [chunk("Hello", **words), chunk(finish=finish, **words), usage_chunk(usage)]
    return stream([*map(sse, records), DONE])


@BOTH
async def test_unknown_words_are_dropped(judged: JudgedGateway, streamed: bool) -> None:
    await judged.enforce(direction="response")
    judged.model.play(_answer(_WORDS, _USAGE, "a bomb", streamed=streamed))
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if streamed else {}
    found = await judged.chat(stream=streamed, **options)
    for given in (found, await respond(judged.scripted, stream=streamed)):
        assert given.status_code == 200, given.text
        assert "Hello" in given.text
        assert "bomb" not in given.text
    assert '"finish_reason":"stop"' in found.text
    assert '"cached_tokens":1' in found.text
    # The operator sees the backend's own word.
    assert (await judged.entry(found)).finish == "a bomb"


@BOTH
async def test_known_words_are_kept(judged: JudgedGateway, streamed: bool) -> None:
    await judged.enforce(direction="response")
    judged.model.play(_answer(_KNOWN, USAGE, "length", streamed=streamed))
    found = await judged.chat(stream=streamed)
    assert '"finish_reason":"length"' in found.text
    for name, word in _KNOWN.items():
        assert f'"{name}":"{word}"' in found.text
