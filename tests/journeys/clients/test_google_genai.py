"""The types of Google's own SDK accept what our Gemini wire sends and what our recordings answer."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.backends.gemini.calls import OLDER, sent_for
from tests.journeys.clients.programs import PythonClient
from tests.journeys.exchanges.exchange import RECORDED, load
from tests.support.upstream_gemini import blocked, call_part, text_part, thought_part, whole

pytestmark = pytest.mark.timeout(900)

_SCRIPT = Path(__file__).parent / "python" / "gemini_types.py"
_PATIENCE_S = 240
_PNG = "data:image/png;base64,iVBORw0KGgo="
_FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "strict": True,
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
_CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "See:"},
            {"type": "image_url", "image_url": {"url": _PNG}},
            {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
            {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": '{"place": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "wet"},
    {"role": "user", "content": "And?"},
]
_SCHEMA = {"name": "n", "schema": {"type": "object", "properties": {}}}


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
    named = {"type": "function", "function": {"name": "weather"}}
    made = {
        "conversation": sent_for(messages=_CONVERSATION, tools=[_FUNCTION]),
        "sampling": sent_for(**sampling),
        "named": sent_for(tools=[_FUNCTION], tool_choice=named),
        "required": sent_for(tools=[_FUNCTION], tool_choice="required"),
        "search": sent_for(web_search_options={}),
        "schema": sent_for(response_format={"type": "json_schema", "json_schema": _SCHEMA}),
        **{f"effort {effort}": sent_for(reasoning_effort=effort) for effort in ("minimal", "max")},
        "budget": sent_for(model=OLDER, reasoning_effort="high"),
    }
    # A signature is bytes in base64, and the documented stand-in is a word in its place.
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
    assert await _complaints(google_genai, given) == []


async def test_googles_types_refuse_what_is_wrong(google_genai: PythonClient) -> None:
    request = {"contents": [{"role": "user", "parts": [{"txt": "Hi"}]}]}
    given = {"requests": {"r": request}, "answers": {"a": whole(finish="SURPRISE")}}
    assert len(await _complaints(google_genai, given)) == 2


async def _complaints(client: PythonClient, given: dict[str, Any]) -> list[str]:
    ran = await asyncio.to_thread(
        subprocess.run,
        [str(client.python), "-P", str(_SCRIPT)],
        input=json.dumps(given).encode(),
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    found: list[str] = json.loads(ran.stdout)
    return found
