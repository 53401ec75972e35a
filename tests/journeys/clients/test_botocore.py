"""Tests that AWS's own library accepts the Converse wire's requests and the recorded answers, reads the
frames of the scripted server, and computes the same signatures."""

import base64
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
from tests.journeys.exchanges.exchange import RECORDED, Exchange, frames_of, load
from tests.providers.converse.calls import GPT, NOVA, behaving, converse_call, sent_for
from tests.support.upstream_converse import (
    answer_frames,
    exception,
    reasoning_block,
    redacted_block,
    text_block,
    use_block,
    whole_answer,
)
from tollkeeper.core.messages_behavior import PromptCaching, ThinkingStyle
from tollkeeper.providers.converse.wire import ConverseWire
from tollkeeper.providers.identity.sigv4 import SignedRequest, SigningKeys, signing_headers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_SCRIPT = "bedrock_types.py"
_FUNCTION = {**FUNCTION, "cache_control": {"type": "ephemeral"}}
_CONVERSATION = conversation(
    [
        {
            "type": "text",
            "text": "Be brief.",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        }
    ],
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    later=({"role": "developer", "content": "Be kind."},),
)


def _requests() -> dict[str, Any]:
    budget = behaving(thinking=ThinkingStyle.BUDGET)
    return {
        "conversation": sent_for(messages=_CONVERSATION, tools=[_FUNCTION]),
        "sampling": sent_for(temperature=0.5, top_p=0.9, top_k=3, stop=["a"]),
        "named": sent_for(tools=[_FUNCTION], tool_choice=FUNCTION_BY_NAME),
        "required": sent_for(tools=[_FUNCTION], tool_choice="required"),
        "auto": sent_for(tools=[_FUNCTION], tool_choice="auto"),
        "schema": sent_for(response_format=answer_format(description="d")),
        "effort": sent_for(reasoning_effort="max"),
        "budget": sent_for(model=budget, reasoning_effort="low", output_tokens_max=8000),
        "nova": sent_for(model=NOVA, reasoning_effort="low"),
        "gpt": sent_for(model=GPT, reasoning_effort="low"),
        "cached": sent_for(model=behaving(caching=PromptCaching.ONE_HOUR)),
    }


def _exchanges() -> list[Exchange]:
    loaded = (load(path.stem) for path in sorted(RECORDED.iterdir()))
    return [exchange for exchange in loaded if exchange.protocol == "converse"]


def _signed() -> dict[str, Any]:
    keys = SigningKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    with_session = SigningKeys(keys.access_key, keys.secret_key, "AQoDYXdzEPT//w==")
    host = "bedrock-runtime.us-east-1.amazonaws.com"
    paths = (
        "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
        "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fa.b/converse-stream",
        "/openai/v1/chat/completions",
        "/model/a~b_c-d/count-tokens?b=2&a=1",
    )
    found = {}
    for used in (keys, with_session):
        for path in paths:
            body = '{"messages": [{"role": "user", "content": [{"text": "Größe"}]}]}'
            request = SignedRequest("POST", path, {"host": host}, body.encode())
            headers = signing_headers(
                used, request, region="us-east-1", service="bedrock", now=1_800_000_000.0
            )
            found[f"{path} {bool(used.session_token)}"] = {
                "host": host,
                "path": path,
                "body": body,
                "region": "us-east-1",
                "headers": headers,
                "access_key": used.access_key,
                "secret_key": used.secret_key,
                "session_token": used.session_token,
            }
    return found


def _in_base64(frames: list[bytes]) -> str:
    return base64.b64encode(b"".join(frames)).decode()


async def test_awss_library_accepts_what_we_send_play_and_sign(botocore: PythonClient) -> None:
    exchanges = _exchanges()
    assert exchanges
    content = [
        reasoning_block("Hm.", "c2ln"),
        redacted_block("aGlkZGVu"),
        text_block(),
        use_block("c1", "weather", place="Paris"),
    ]
    count = json.loads(ConverseWire().encode_count(converse_call(messages=_CONVERSATION)))
    given = {
        "requests": {
            **{exchange.name: exchange.request for exchange in exchanges},
            **_requests(),
        },
        "counts": {"count": count},
        "answers": {
            **{
                exchange.name: exchange.answer["body"]
                for exchange in exchanges
                if "usage" in exchange.answer.get("body", {})
            },
            "whole": whole_answer(*content, stop_reason="tool_use"),
        },
        "streams": {
            **{
                exchange.name: _in_base64(frames_of(exchange))
                for exchange in exchanges
                if exchange.streamed
            },
            "whole": _in_base64(answer_frames(*content, stop_reason="tool_use")),
            "exception": _in_base64([exception("throttlingException")]),
        },
        "signed": _signed(),
    }
    assert await complaints(botocore, _SCRIPT, given) == []


async def test_awss_library_refuses_what_is_wrong(botocore: PythonClient) -> None:
    signed = next(iter(_signed().values()))
    broken = bytearray(b"".join(answer_frames()))
    broken[40] ^= 1
    given = {
        "requests": {"r": {"messages": [{"role": "user", "content": [{"txt": "Hi"}]}]}},
        "counts": {"c": {"input": {"converse": {"inferenceConfig": {}}}}},
        "answers": {"a": whole_answer(stop_reason="surprise")},
        "streams": {"s": base64.b64encode(bytes(broken)).decode()},
        "signed": {"s": {**signed, "body": "{}"}},
    }
    assert len(await complaints(botocore, _SCRIPT, given)) == 5
