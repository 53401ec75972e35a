"""Tests that `make billing ARGS="--explain …"` prints what really happened, with tollkeeper."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench.billing.explain import explain_scenarios, explain_trial, shown
from bench.billing.gateways.ours import Ours
from bench.billing.scenarios import load_scenarios
from bench.billing.trials import load_trials

from tests.support.databases import own_database

_KILL = "kill-after-one-call"


@pytest.fixture
def gateway(shared_conninfo: str, request: pytest.FixtureRequest) -> Ours:
    return Ours(conninfo=own_database(shared_conninfo, request.node.name))


async def test_the_provider_is_printed_as_it_really_answered(
    gateway: Ours, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cut stream ends where it was cut. A fallback and a retry each have two calls."""
    names = ("vllm-continuous-cut-after-2", "openai-retry-after-500", "openai-fallback")
    scenarios = {found.name: found for found in load_scenarios() if found.name in names}
    await explain_scenarios(gateway, list(scenarios.values()), tmp_path)
    _, *parts = capsys.readouterr().out.split("\n=== ")
    said = {part.partition(":")[0]: part for part in parts}
    assert set(said) == set(names)
    cut = said["vllm-continuous-cut-after-2"]
    sent = cut.partition("call 1: the provider sends")[2].partition("the client gets")[0]
    assert "HTTP/1.1 200" in sent
    assert sent.count("\ndata: ") == 2
    assert "[DONE]" not in sent
    assert "(the provider disconnects)" in sent
    truth = scenarios["vllm-continuous-cut-after-2"].truth
    assert all(line in cut for line in truth.arithmetic)
    assert f"true {truth.usd}, booked " in cut
    assert re.findall(r"HTTP/1.1 (\d+)", said["openai-retry-after-500"]) == ["500", "200"]
    first, _, second = said["openai-fallback"].partition("call 2: ")
    assert "/s/openai-fallback/" in first
    assert "HTTP/1.1 503" in first
    assert "/s/openai-fallback--second/" in second
    assert "HTTP/1.1 200" in second


def test_a_text_that_is_cut_says_so() -> None:
    assert shown("x" * 7, 7) == "x" * 7
    assert shown("x" * 9, 7) == "xxxxxxx\n[2 of 9 characters are not shown]"


@pytest.mark.slow
async def test_a_trial_is_printed_with_its_calls_records_and_sums(
    gateway: Ours, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [trial] = [replace(one, calls=2) for one in load_trials() if one.name == _KILL]
    await explain_trial(gateway, trial, tmp_path)
    said = capsys.readouterr().out
    assert "2 with status 200" in said
    assert "call 1: the provider sends" in said
    assert "call 2: the provider sends HTTP/1.1 200" in said
    _, _, record = said.partition("the record of tollkeeper")
    assert record.count(f'"model": "{_KILL}"') == 2
    assert "1000 prompt * 0.000003 = 0.003" in record
    assert "2 answers, 0 marked calls\nbilled 0.012" in record
