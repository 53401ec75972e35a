"""Tests that the types of Google's SDK accept the Gemini wire's requests and the recorded answers."""

import json
from typing import Any

import pytest

from tests.journeys.clients.programs import PythonClient
from tests.journeys.clients.provider_types import (
    FUNCTION,
    FUNCTION_BY_NAME,
    answer_format,
    complaints,
    conversation,
)
from tests.journeys.exchanges.exchange import RECORDED, load
from tests.providers.gemini.calls import OLDER, sent_for
from tests.support.upstream_gemini import blocked, call_part, text_part, thought_part, whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_SCRIPT = "gemini_types.py"
_CONVERSATION = conversation(
    "Be brief.", {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
)


def _requests() -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "seed": 7,
        "stop": ["a"],
    }
    made = {
        "conversation": sent_for(messages=_CONVERSATION, tools=[FUNCTION]),
        "sampling": sent_for(**sampling),
        "named": sent_for(tools=[FUNCTION], tool_choice=FUNCTION_BY_NAME),
        "required": sent_for(tools=[FUNCTION], tool_choice="required"),
        "search": sent_for(web_search_options={}),
        "schema": sent_for(response_format=answer_format()),
        **{f"effort {effort}": sent_for(reasoning_effort=effort) for effort in ("minimal", "max")},
        "budget": sent_for(model=OLDER, reasoning_effort="high"),
    }
    # A signature is in base64, but the documented placeholder is a word, which the types reject.
    written = json.dumps(made).replace("skip_thought_signature_validator", "c2ln")
    found: dict[str, Any] = json.loads(written)
    return found


def _answers() -> dict[str, Any]:
    return {
        "whole": whole(thought_part("Hm.", "c2ln"), text_part(), call_part("c", "f", x=1)),
        "blocked": blocked(),
    }


def _recorded() -> tuple[dict[str, Any], dict[str, Any]]:
    requests: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for name in sorted(path.stem for path in RECORDED.iterdir()):
        exchange = load(name)
        if exchange.protocol != "gemini":
            continue
        requests[name] = exchange.request
        said = exchange.answer["lines"] if exchange.streamed else [exchange.answer["body"]]
        records = [record for record in said if isinstance(record, dict) and "error" not in record]
        answers |= {f"{name} {number}": record for number, record in enumerate(records)}
    return requests, answers


async def test_googles_types_accept_what_we_send_and_play(google_genai: PythonClient) -> None:
    requests, answers = _recorded()
    assert requests
    given = {"requests": {**requests, **_requests()}, "answers": {**answers, **_answers()}}
    assert await complaints(google_genai, _SCRIPT, given) == []


async def test_googles_types_refuse_what_is_wrong(google_genai: PythonClient) -> None:
    request = {"contents": [{"role": "user", "parts": [{"txt": "Hi"}]}]}
    given = {"requests": {"r": request}, "answers": {"a": whole(finish="SURPRISE")}}
    assert len(await complaints(google_genai, _SCRIPT, given)) == 2
