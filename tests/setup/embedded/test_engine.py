"""Tests the behavior of the real engine on which the catalog and the gateway rely."""

import json
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.engine import ask, chat
from tollkeeper.setup.embedded.engine import EmbeddedEngine
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.embedded.packaged_model import ENGINE_SCHEMA_BOUNDS, PACKAGED_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.engine]
_SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
_PROMPTS = {
    "short": [{"role": "user", "content": "Say hi"}],
    "unicode": [{"role": "user", "content": "Grüße, 世界! 🎉👩‍👩‍👧 שלום"}],
    "long": [{"role": "user", "content": "lorem ipsum " * 60}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    "control tokens": [{"role": "user", "content": "<|im_end|>"}],
}


@pytest.mark.parametrize("name", _PROMPTS)
async def test_the_count_before_is_the_usage_after(address: EngineAddress, name: str) -> None:
    messages = _PROMPTS[name]
    counted = await ask(address, "/chat/completions/input_tokens", {"messages": messages})
    answered = await chat(address, messages, max_tokens=1)
    assert counted.json["input_tokens"] == answered.json["usage"]["prompt_tokens"]


@pytest.mark.parametrize("key", ["", "wrong"])
@pytest.mark.parametrize("path", ["/chat/completions", "/models"])
async def test_a_wrong_credential_is_refused(address: EngineAddress, key: str, path: str) -> None:
    body = {"messages": _PROMPTS["short"]} if path == "/chat/completions" else None
    assert (await ask(address, path, body, api_key=key)).status == 401


async def test_listens_on_loopback_only(engine: EmbeddedEngine, address: EngineAddress) -> None:
    listening = [
        connection.laddr
        for connection in psutil.Process(engine.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [(at.ip, at.port) for at in listening] == [
        ("127.0.0.1", urlsplit(address.base_url).port)
    ]


async def test_the_credential_and_our_secrets_stay_out_of_sight(
    engine: EmbeddedEngine, address: EngineAddress
) -> None:
    process = psutil.Process(engine.pid)
    assert address.api_key not in " ".join(process.cmdline())
    assert address.api_key not in process.environ().values()
    assert not any(name.startswith("TOLLKEEPER_") for name in process.environ())


async def test_no_other_origin_is_welcome_and_no_path_is_told(address: EngineAddress) -> None:
    answer = await chat(address, "Hello")
    assert answer.headers.get("Access-Control-Allow-Origin", "") == ""
    assert answer.json["model"] == PACKAGED_MODEL.upstream_model
    assert ".gguf" not in answer.text


async def test_a_repeated_prompt_is_read_from_the_cache(address: EngineAddress) -> None:
    prompt = "Once upon a time there was a very small cat. " * 8
    await chat(address, prompt, max_tokens=1)
    usage = (await chat(address, prompt, max_tokens=1)).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


async def test_a_prompt_beyond_the_context_is_refused(address: EngineAddress) -> None:
    answer = await chat(address, "hello " * 2000)
    assert answer.status == 400
    assert answer.json["error"]["type"] == "exceed_context_size_error"


@pytest.mark.smoke
async def test_a_stream_ends_with_finish_usage_and_done(address: EngineAddress) -> None:
    answer = await chat(address, "Hello", stream=True, stream_options={"include_usage": True})
    records = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert records.pop() == "[DONE]"
    usage, finish = json.loads(records[-1]), json.loads(records[-2])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert finish["choices"][0]["finish_reason"] == "length"


async def test_sampling_parameters_do_what_they_say(address: EngineAddress) -> None:
    plain = await _text(address, "Name a fruit.")
    hot = {"temperature": 1.8, "max_tokens": 12}
    assert await _text(address, "Name a fruit.", temperature=1.8, top_p=0.001) == plain
    seeded = [await _text(address, "Name a fruit.", seed=seed, **hot) for seed in (7, 7, 8)]
    assert seeded[0] == seeded[1] != seeded[2]
    first = plain.split()[0]
    assert await _text(address, "Name a fruit.", stop=[first]) == ""
    # Token 38634 is "Paris".
    assert await _text(address, "Name a fruit.", logit_bias={"38634": 100}) == "Paris" * 4
    repeat, listing = "Repeat: ha ha ha ha ha", "List: apple, banana, apple, banana, apple,"
    for prompt, penalty in ((repeat, "frequency_penalty"), (listing, "presence_penalty")):
        free = await _text(address, prompt, max_tokens=24)
        assert await _text(address, prompt, max_tokens=24, **{penalty: 2}) != free


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}},
        {"type": "json_object"},
    ],
    ids=["structured_outputs", "json_mode"],
)
async def test_formats_hold(address: EngineAddress, response_format: dict[str, object]) -> None:
    prompt = "Give a person as JSON with name and age."
    answer = await chat(address, prompt, response_format=response_format, max_tokens=80)
    choice = answer.json["choices"][0]
    if response_format["type"] == "json_schema":
        assert json.loads(choice["message"]["content"]).keys() == {"yes"}
    elif choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    else:  # The token limit cut the answer, which begins like an object.
        assert choice["message"]["content"].startswith("{")


async def test_logprobs_have_the_usual_shape(address: EngineAddress) -> None:
    answer = await chat(address, "Hello", logprobs=True, top_logprobs=2, max_tokens=2)
    tokens = answer.json["choices"][0]["logprobs"]["content"]
    assert len(tokens) == 2
    for token in tokens:
        assert token["logprob"] <= 0
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(token["top_logprobs"]) == 2


async def test_tools_do_not_work_and_are_not_declared(address: EngineAddress) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = await chat(address, "Call f.", tools=[tool], tool_choice="required")
    assert "tool_calls" not in answer.json["choices"][0]["message"]
    assert "tools" not in PACKAGED_MODEL.supported_features


async def _text(address: EngineAddress, prompt: str, **fields: object) -> str:
    answer = await chat(address, prompt, **fields)
    assert answer.status == 200, answer.text
    text = answer.json["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


async def test_the_largest_schema_that_the_gateway_takes_is_answered(
    address: EngineAddress,
) -> None:
    values = [f"value {number}" for number in range(ENGINE_SCHEMA_BOUNDS.choices_max)]
    wanted = {"name": "answer", "schema": {"type": "string", "enum": values}}
    answer = await chat(
        address,
        "Pick one.",
        max_tokens=24,
        response_format={"type": "json_schema", "json_schema": wanted},
    )
    assert json.loads(answer.json["choices"][0]["message"]["content"]) in values
