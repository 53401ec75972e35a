"""Tests models with several backends: which backend answers, and which amounts are held and charged."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.constants import backend_constants
from tests.support.scripted_gateway import MODEL, ScriptedGateway, scripted_gateway
from tests.support.upstream import (
    USAGE,
    Upstream,
    Verb,
    answer,
    chat,
    completion,
    refuse,
    reset_after,
    reset_before_headers,
    unused_url,
)
from tests.support.upstream_messages import MESSAGES_USAGE, message

_CHEAP = {"prompt": "0.000001", "completion": "0.000002"}
_DEAR = {"prompt": "0.000003", "completion": "0.000015"}
_PICO = 1_000_000  # picousd per micro-USD
_CHEAP_COST = (USAGE["prompt_tokens"] + 2 * USAGE["completion_tokens"]) * _PICO
_DEAR_COST = (3 * MESSAGES_USAGE["input_tokens"] + 15 * MESSAGES_USAGE["output_tokens"]) * _PICO


class TwoBackends:
    """A gateway with two backends. `near` uses chat and is cheap; `far` uses Messages and is expensive."""

    def __init__(self, scripted: ScriptedGateway, near: Upstream, far: Upstream) -> None:
        self.scripted = scripted
        self.near = near
        self.far = far

    @property
    def asked(self) -> tuple[int, int]:
        return len(self.near.requests), len(self.far.requests)


@asynccontextmanager
async def two_backends(
    data_dir: Path, conninfo: str, *, near_url: str = "", **alternative: Any
) -> AsyncIterator[TwoBackends]:
    async with Upstream(chat()) as near, Upstream(message()) as far:
        alternative = {
            "backend": "far",
            "pricing": _DEAR,
            "upstream_model": "far-chat",
            **alternative,
        }
        backend = {
            "name": "scripted",
            "urls": [near_url or near.url],
        }
        other = {
            "name": "far",
            "protocol": "messages",
            "tokenize_path": "none",
            "urls": [far.url],
        }
        async with scripted_gateway(
            data_dir,
            conninfo,
            near,
            backends=[backend, other],
            model={"pricing": _CHEAP, "alternatives": [alternative]},
            changed_constants=backend_constants(failures_to_eject=1_000_000),
        ) as scripted:
            yield TwoBackends(scripted, near, far)


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[TwoBackends]:
    async with two_backends(data_dir, conninfo) as running:
        yield running


@pytest.fixture
async def two(shared: TwoBackends) -> TwoBackends:
    shared.near.play(chat())
    shared.far.play(message())
    return TwoBackends(await shared.scripted.with_tenant(), shared.near, shared.far)


_NO_CREDIT = "Your credit balance is too low to access the Anthropic API."


def _hold(prompt: int, output: int, prices: dict[str, int]) -> int:
    return (prompt * prices["prompt"] + output * prices["completion"]) * _PICO


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_first_answers_by_its_own_price(two: TwoBackends, streamed: bool) -> None:
    before = two.asked
    answered = await two.scripted.chat(stream=streamed)
    assert answered.status_code == 200
    assert two.asked == (before[0] + 1, before[1])
    entry = await two.scripted.entry_of(answered)
    dearest = _hold(
        entry.prompt_tokens_max, entry.output_tokens_max, {"prompt": 3, "completion": 15}
    )
    assert (entry.hold, entry.cost) == (dearest, _CHEAP_COST)
    activity = await two.scripted.activity_of(answered)
    assert (activity.backend, activity.cost_picousd) == ("scripted", _CHEAP_COST)
    assert (await two.scripted.balance())["settled"] == _CHEAP_COST


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("verb", [*map(refuse, (503, 429, 500, 401)), refuse(400, _NO_CREDIT)])
async def test_another_one_answers_and_is_paid(
    two: TwoBackends, verb: Verb, streamed: bool
) -> None:
    two.near.play(verb)
    answered = await two.scripted.chat(stream=streamed)
    assert answered.status_code == 200, answered.text
    assert two.far.requests[-1].json["model"] == "far-chat"
    entry = await two.scripted.entry_of(answered)
    assert (entry.status, entry.cost, entry.overage) == ("settled", _DEAR_COST, 0)
    assert (await two.scripted.activity_of(answered)).backend == "far"
    assert (await two.scripted.balance())["settled"] == _DEAR_COST


@pytest.mark.parametrize(
    ("verb", "streamed"),
    [(reset_before_headers(), False), (refuse(504), False), (reset_after(2), True)],
)
async def test_what_may_have_been_charged_is_not_tried_elsewhere(
    two: TwoBackends, verb: Verb, streamed: bool
) -> None:
    before = two.asked
    two.near.play(verb)
    answered = await two.scripted.chat(stream=streamed)
    assert two.asked == (before[0] + 1, before[1])
    entry = await two.scripted.entry_of(answered)
    if streamed:
        # The cost is computed with the prices of the backend that answered.
        assert entry.status == "settled"
        tokens = (entry.cost // _PICO - entry.prompt_tokens) // 2
        assert entry.cost == _hold(entry.prompt_tokens, tokens, {"prompt": 1, "completion": 2})
    else:
        assert (entry.status, entry.cost) == ("unsettled", 0)


async def test_all_of_them_fail(two: TwoBackends) -> None:
    two.near.play(refuse(503))
    two.far.play(refuse(529))
    answered = await two.scripted.chat()
    assert answered.status_code == 502
    assert (await two.scripted.entry_of(answered)).status == "released"
    assert (await two.scripted.balance())["settled"] == 0


async def test_a_request_that_is_wrong_is_not_tried_elsewhere(two: TwoBackends) -> None:
    before = two.asked
    two.near.play(refuse(400, "no such thing"))
    assert (await two.scripted.chat()).status_code == 422
    assert two.asked == (before[0] + 1, before[1])


async def test_callers_get_what_all_backends_can_do(two: TwoBackends) -> None:
    """The model declares `seed`, but the protocol of the second backend has no such field."""
    assert (await two.scripted.chat(seed=1)).status_code == 501
    shown = await two.scripted.gateway.client.get(
        "/v1/models/" + MODEL.replace("/", "%2F"), headers=two.scripted.tenant.as_customer
    )
    assert shown.json()["supported_sampling_parameters"] == ["temperature", "top_p", "stop"]
    prices = shown.json()["pricing"]
    assert (prices["prompt"], prices["completion"]) == (_DEAR["prompt"], _DEAR["completion"])


async def test_several_completions(two: TwoBackends) -> None:
    """The hold covers three prompts, because `far` needs one call for each completion."""
    two.near.play(refuse(503))
    answered = await two.scripted.chat(n=3)
    assert len(answered.json()["choices"]) == 3
    entry = await two.scripted.entry_of(answered)
    assert (entry.cost, entry.overage) == (3 * _DEAR_COST, 0)


async def test_several_completions_in_one_call_have_one_prompt(two: TwoBackends) -> None:
    """This is also true if the backend reports no usage and the gateway counts the tokens itself."""
    bare = completion(choices=3)
    del bare["usage"]
    two.near.play(answer(bare))
    answered = await two.scripted.chat(n=3)
    entry = await two.scripted.entry_of(answered)
    assert (entry.status, entry.estimated) == ("settled", True)
    one_prompt = replace(entry, prompt_tokens_max=entry.prompt_tokens_max // 3).prompt_tokens
    output = answered.json()["usage"]["completion_tokens"]
    assert entry.cost == _hold(one_prompt, output, {"prompt": 1, "completion": 2})


async def test_a_backend_that_cannot_be_reached(data_dir: Path, conninfo: str) -> None:
    async with two_backends(data_dir, conninfo, near_url=unused_url()) as two:
        for _ in range(3):
            assert (await two.scripted.chat()).status_code == 200
        assert two.asked == (0, 3)


async def test_calls_are_shared_by_weight_and_sessions_stay(data_dir: Path, conninfo: str) -> None:
    async with two_backends(data_dir, conninfo, order=0, weight=3) as two:
        for _ in range(60):
            assert (await two.scripted.chat()).status_code == 200
        near, far = two.asked
        assert near + far == 60
        assert 25 <= far < 60
        for session in ("a", "b", "c", "d"):
            headers = {**two.scripted.tenant.as_customer, "X-Service-Session-ID": session}
            backends = set()
            for _ in range(4):
                answered = await two.scripted.chat(headers=headers)
                backends.add((await two.scripted.activity_of(answered)).backend)
            assert len(backends) == 1


async def test_a_list_of_models_names_the_model_and_not_its_backends(two: TwoBackends) -> None:
    """The operator chooses the backends of a model, so an allowed model is allowed on all of them. The
    names of backends and the backends' names for the model allow nothing."""
    services, tenant = two.scripted.gateway.services, two.scripted.tenant
    await services.projects.project_allow_models(tenant.project_id, [MODEL])
    two.near.play(refuse(503))
    answered = await two.scripted.chat()
    assert answered.status_code == 200
    assert (await two.scripted.activity_of(answered)).backend == "far"
    before = two.asked
    await services.projects.project_allow_models(
        tenant.project_id, ["far-chat", "upstream-chat", "scripted", "far"]
    )
    assert (await two.scripted.chat()).status_code == 403
    assert two.asked == before
    assert (await two.scripted.balance())["settled"] == _DEAR_COST


async def test_an_unsettled_call_names_the_backend_that_may_charge(two: TwoBackends) -> None:
    two.near.play(refuse(503))
    two.far.play(reset_before_headers())
    answered = await two.scripted.chat()
    assert (await two.scripted.entry_of(answered)).status == "unsettled"
    assert (await two.scripted.activity_of(answered)).backend == "far"


async def test_images_are_charged_for_the_prompts_that_were_sent(
    data_dir: Path, conninfo: str
) -> None:
    """The first backend would send the prompt once for each choice. It refuses the call, and the second
    backend gets the prompt once."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    whole = completion()
    choices = [{**whole["choices"][0], "index": index} for index in range(4)]
    backend = {"name": "scripted", "native_n": False}
    async with (
        Upstream(refuse(503)) as near,
        Upstream(answer({**whole, "choices": choices})) as far,
        scripted_gateway(
            data_dir,
            conninfo,
            near,
            backends=[
                {**backend, "urls": [near.url]},
                {"name": "far", "urls": [far.url]},
            ],
            model={
                "pricing": {**_CHEAP, "image": "0.001"},
                "input_modalities": ["text", "image"],
                "token_bounds": {"image": 100},
                "alternatives": [{"backend": "far"}],
            },
        ) as scripted,
    ):
        answered = await scripted.chat(messages=[{"role": "user", "content": [image]}], n=4)
        assert answered.status_code == 200, answered.text
        assert len(far.requests) == 1
        assert (await scripted.entry_of(answered)).cost == _CHEAP_COST + 1000 * _PICO
