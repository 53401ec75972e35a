"""Tests a judge whose backend uses the Responses protocol."""

import json

from tests.support.backend_calls import MODEL as CATALOG_MODEL
from tests.support.backend_calls import routed
from tests.support.upstream import Upstream
from tests.support.upstream_responses import respond as responding
from tests.support.upstream_wire import message_item
from tollkeeper.policies.judge.judge import Judge, JudgeConfig, Question
from tollkeeper.providers.config import WireProtocol


async def test_the_judge_itself_may_speak_responses() -> None:
    alternatives = [{"token": "Yes", "logprob": -0.105}, {"token": "No", "logprob": -2.303}]
    found = [{**alternatives[0], "top_logprobs": alternatives}]
    verb = responding(
        message_item("Yes", logprobs=found),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    )
    config = JudgeConfig(
        deadline_s=10,
        concurrency=1,
        window_characters=1000,
        overlap_characters=10,
        top_logprobs=20,
    )
    async with (
        Upstream(verb) as upstream,
        routed(upstream.url, protocol=WireProtocol.RESPONSES) as backend,
    ):
        judge = Judge(backend, CATALOG_MODEL, b"secret", config)
        [opinion] = await judge.ask_all("A text.", [Question("q", "Is it?")])
        assert opinion.complete, opinion.reason
        assert opinion.basis_points is not None
        assert 8900 <= opinion.basis_points <= 9100
        request = json.loads(upstream.requests[-1].body)
        assert request["max_output_tokens"] == 1
        assert request["include"] == ["message.output_text.logprobs"]
        assert request["input"][-1]["content"].endswith("Answer (Yes or No):")
