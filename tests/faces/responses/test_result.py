"""Tests the JSON result of a Responses request: all published fields, for every kind of answer."""

from typing import Any

from tests.support.responses_answers import both, calls, respond
from tests.support.scripted_gateway import MODEL, ScriptedGateway
from tests.support.tables import each
from tests.support.upstream import USAGE, answer, completion


async def result(scripted: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    answered = await respond(scripted, **fields)
    assert answered.status_code == 200, answered.text
    found: dict[str, Any] = answered.json()
    return found


async def test_text(scripted: ScriptedGateway) -> None:
    found = await result(scripted)
    suffix = found["id"].removeprefix("resp_")
    assert len(suffix) == 32
    assert found["object"] == "response"
    assert found["status"] == "completed"
    assert found["model"] == MODEL
    assert found["completed_at"] >= found["created_at"]
    assert found["output"] == [
        {
            "type": "message",
            "id": f"msg_{suffix}00",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
            ],
        }
    ]
    assert found["usage"] == {
        "input_tokens": USAGE["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": USAGE["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": USAGE["total_tokens"],
    }


async def test_an_answer_without_a_finish_reason_is_complete(scripted: ScriptedGateway) -> None:
    body = completion()
    body["choices"][0]["finish_reason"] = None
    body["choices"][0]["message"] |= calls(("a", "f", "{}")) | {"content": "Hello"}
    scripted.upstream.play(answer(body))
    found = await result(scripted)
    assert found["status"] == "completed"
    assert [item["status"] for item in found["output"]] == ["completed"] * 2


async def test_defaults_are_shown_as_what_they_mean(scripted: ScriptedGateway) -> None:
    found = await result(scripted)
    shown = {
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "max_output_tokens": 1024,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None, "summary": None},
        "metadata": {},
        "service_tier": "default",
        "store": False,
        "background": False,
    }
    assert {name: found[name] for name in shown} == shown


async def test_what_was_asked_for_is_shown(scripted: ScriptedGateway) -> None:
    asked = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.25,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "max_output_tokens": 9,
        "truncation": "auto",
        "metadata": {"a": "b"},
        "service_tier": "priority",
        "safety_identifier": "s",
        "user": "u",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "high", "summary": "concise"},
        "text": {
            "format": {
                "type": "json_schema",
                "name": "n",
                "schema": {"type": "object"},
                "description": None,
                "strict": True,
            },
            "verbosity": "low",
        },
    }
    found = await result(scripted, **asked)
    assert {name: found[name] for name in asked} == asked


async def test_backend_knows_its_tier_better(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(answer(completion(service_tier="flex")))
    assert (await result(scripted))["service_tier"] == "flex"


async def test_usage_details(scripted: ScriptedGateway) -> None:
    usage = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    scripted.upstream.play(both({"content": "Hello"}, usage=usage))
    found = (await result(scripted))["usage"]
    assert found["input_tokens_details"] == {"cached_tokens": 5, "cache_write_tokens": 2}
    assert found["output_tokens_details"] == {"reasoning_tokens": 1}


async def test_function_calls(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(
        both(calls(("c1", "look", '{"far":true}'), ("c2", "leap", "{}")), finish="tool_calls")
    )
    found = await result(scripted)
    assert found["status"] == "completed"
    assert [(item["type"], item["id"][:3], item["status"]) for item in found["output"]] == [
        ("function_call", "fc_", "completed")
    ] * 2
    assert [(item["call_id"], item["name"], item["arguments"]) for item in found["output"]] == [
        ("c1", "look", '{"far":true}'),
        ("c2", "leap", "{}"),
    ]


async def test_reasoning_text_and_call_in_their_order(scripted: ScriptedGateway) -> None:
    message = {"reasoning": "Hm.", **calls(("c1", "look", "{}")), "content": "Let me see."}
    scripted.upstream.play(both(message, finish="tool_calls"))
    reasoning, text, call = (await result(scripted))["output"]
    assert reasoning == {
        "type": "reasoning",
        "id": reasoning["id"],
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    assert text["content"][0]["text"] == "Let me see."
    assert call["call_id"] == "c1"
    assert len({reasoning["id"], text["id"], call["id"]}) == 3


async def test_refusal(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(both({"content": None, "refusal": "I will not."}))
    [item] = (await result(scripted))["output"]
    assert item["content"] == [{"type": "refusal", "refusal": "I will not."}]


async def test_annotations_are_flat(scripted: ScriptedGateway) -> None:
    citation = {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 5}
    note = {"type": "url_citation", "url_citation": citation}
    scripted.upstream.play(both({"content": "Hello", "annotations": [note]}))
    [item] = (await result(scripted))["output"]
    assert item["content"][0]["annotations"] == [{"type": "url_citation", **citation}]


@each(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_incomplete(scripted: ScriptedGateway, finish: str, reason: str) -> None:
    scripted.upstream.play(both({"content": "Hel"}, finish=finish))
    found = await result(scripted)
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": reason}
    assert found["completed_at"] is None
    assert found["output"][-1]["status"] == "incomplete"
    assert found["usage"]["total_tokens"] == USAGE["total_tokens"]


async def test_only_the_last_item_is_incomplete(scripted: ScriptedGateway) -> None:
    message = calls(("c1", "look", "{}"), ("c2", "leap", '{"hi'))
    scripted.upstream.play(both(message, finish="length"))
    found = await result(scripted)
    assert [item["status"] for item in found["output"]] == ["completed", "incomplete"]


async def test_empty_answer_is_an_empty_message(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(both({"content": ""}))
    [item] = (await result(scripted))["output"]
    assert item["content"][0]["text"] == ""


def _logprobs() -> dict[str, Any]:
    top = {"token": "Hi", "logprob": -2.5, "bytes": None}
    token = {"token": "Hé", "logprob": -0.5, "bytes": None, "top_logprobs": [top], "id": 17}
    return {"content": [token], "refusal": None}


async def test_logprobs_where_they_are_included(scripted: ScriptedGateway) -> None:
    whole = completion("Hé")
    whole["choices"][0]["logprobs"] = _logprobs()
    scripted.upstream.play(answer(whole))
    [item] = (await result(scripted, include=["message.output_text.logprobs"], top_logprobs=1))[
        "output"
    ]
    assert item["content"][0]["logprobs"] == [
        {
            "token": "Hé",
            "logprob": -0.5,
            "bytes": [72, 195, 169],
            "top_logprobs": [{"token": "Hi", "logprob": -2.5, "bytes": [72, 105]}],
        }
    ]
    scripted.upstream.play(answer(whole))
    [item] = (await result(scripted))["output"]
    assert item["content"][0]["logprobs"] == []


async def test_strange_logprobs_are_no_fault(scripted: ScriptedGateway) -> None:
    whole = completion("Hello")
    whole["choices"][0]["logprobs"] = {"tokens": ["Hello"], "content": [["Hello", -1]]}
    scripted.upstream.play(answer(whole))
    [item] = (await result(scripted, include=["message.output_text.logprobs"]))["output"]
    assert item["content"][0]["logprobs"] == []
