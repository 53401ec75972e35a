"""Tests a judge that is down, slow or not configured, or gives no usable answer. Calls with enforcing
policies then fail, and monitoring policies never make a call fail."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.gateway import assert_error
from tests.support.judged_gateway import (
    LIKELY,
    Asked,
    JudgedGateway,
    assert_denied,
    judge_answer,
    judge_answer_of,
    judged_gateway,
)
from tests.support.upstream import (
    Peer,
    Verb,
    answer,
    close_before_headers,
    completion,
    hang,
    refuse,
    reset_before_headers,
    stream,
)


def _late(seconds: float) -> Verb:
    async def verb(peer: Peer) -> None:
        await asyncio.sleep(seconds)
        await judge_answer(0)(peer)

    return verb


_FAULTS = {
    "reset": reset_before_headers(),
    "closed": close_before_headers(),
    "refused": refuse(400),
    "broken": refuse(500),
    "limited": refuse(429),
    "html": answer(b"<html>busy</html>", content_type="text/html"),
    "not json": answer(b"{", content_type="application/json"),
    "no choices": answer({"choices": []}),
    "no log-probabilities": answer(completion("Yes")),
    "neither word": judge_answer_of([("Banana", -0.1), ("Apple", -3.0)]),
    "a stream": stream(),
}


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize("direction", ["request", "response"])
async def test_enforcing_fails_closed(judged: JudgedGateway, fault: str, direction: str) -> None:
    policy = await judged.enforce(direction=direction)
    judged.judge.opinion = lambda _: _FAULTS[fault]
    answered = len(judged.model.requests)
    found = await judged.chat(fault)
    assert_error(found, 503, "service_unavailable")
    assert policy.id in found.json()["error"]["message"]
    entry = await judged.scripted.entry_of(found)
    if direction == "request":
        assert (len(judged.model.requests), entry.status) == (answered, "released")
        assert found.headers["retry-after"]
    else:
        assert (entry.status, entry.estimated) == ("settled", False)
        assert found.headers["x-should-retry"] == "false"
    (verdict,) = (await judged.entry(found)).verdicts
    assert (verdict.probability_basis_points, verdict.matched) == (None, False)


@pytest.mark.parametrize("fault", _FAULTS)
async def test_monitoring_never_fails(judged: JudgedGateway, fault: str) -> None:
    await judged.publish(direction="both")
    judged.judge.opinion = lambda _: _FAULTS[fault]
    found = await judged.chat(fault)
    assert found.status_code == 200, found.text
    verdicts = (await judged.entry(found)).verdicts
    assert [verdict.probability_basis_points for verdict in verdicts] == [None, None]
    assert sorted(verdict.direction for verdict in verdicts) == ["request", "response"]


@pytest.mark.parametrize("as_record", [False, True])
async def test_the_log_does_not_quote_what_the_judge_refuses(
    judged: JudgedGateway, as_record: bool
) -> None:
    """The judge's server quotes the prompt in its refusal."""
    await judged.enforce(direction="request")
    quoting = "Input should be a string, input_value='my diary'"
    record = {"error": {"message": quoting, "code": 400}}
    judged.judge.opinion = lambda _: answer(record) if as_record else refuse(400, quoting)
    with capture_logs() as logs:
        assert_error(await judged.chat("my diary"), 503, "service_unavailable")
    [missing] = [line for line in logs if line["event"] == "verdicts are missing"]
    assert missing["reason"] == "The backend refused the request."
    assert "diary" not in str(logs)


async def test_what_could_not_be_judged_is_judged_the_next_time(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")
    judged.judge.opinion = lambda _: refuse(500)
    assert (await judged.chat("bomb")).status_code == 503
    judged.judge.opinion = lambda _: LIKELY
    assert_denied(await judged.chat("bomb"), policy, "request")


async def test_a_match_counts_though_another_is_missing(judged: JudgedGateway) -> None:
    await judged.enforce("silence", direction="request")
    policy = await judged.enforce("bomb", direction="request")
    judged.judge.opinion = lambda asked: (
        reset_before_headers() if "silence" in asked.question else LIKELY
    )
    assert_denied(await judged.chat("bomb"), policy, "request")


async def test_a_match_in_one_window_counts_though_another_is_missing(
    judged: JudgedGateway,
) -> None:
    policy = await judged.enforce(direction="request")

    def opinion(asked: Asked) -> int | Verb:
        return LIKELY if "bomb" in asked.text else reset_before_headers()

    judged.judge.opinion = opinion
    assert_denied(await judged.chat("bomb" + "." * 3000), policy, "request")
    assert (await judged.chat("." * 3000)).status_code == 503


async def test_a_window_that_is_too_long_for_the_judge_is_halved(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")

    def opinion(asked: Asked) -> int | Verb:
        if len(asked.text) > 450:
            return refuse(400, "the request exceeds the available context size")
        return LIKELY if "bomb" in asked.text else 0

    judged.judge.opinion = opinion
    assert_denied(await judged.chat("." * 700 + "bomb" + "." * 900), policy, "request")
    assert (await judged.chat("." * 1600)).status_code == 200


@pytest.mark.parametrize("mode", ["enforcing", "monitoring"])
async def test_without_a_judge(judged: JudgedGateway, mode: str) -> None:
    services = judged.scripted.gateway.services
    judge, services.checks._judge = services.checks._judge, None
    try:
        await judged.publish(mode=mode, direction="request")
        found = await judged.chat()
        assert found.status_code == (503 if mode == "enforcing" else 200)
        (verdict,) = (await judged.entry(found)).verdicts
        assert verdict.probability_basis_points is None
    finally:
        services.checks._judge = judge


@pytest.fixture(scope="module")
async def hasty(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(
        data_dir, conninfo, judge={"deadline_s": 0.6, "concurrency": 2, "segment_characters": 10}
    ) as judged:
        yield judged


@pytest.fixture
async def impatient(hasty: JudgedGateway) -> JudgedGateway:
    return await hasty.for_next_test()


@pytest.mark.parametrize("direction", ["request", "response"])
async def test_a_slow_judge_has_one_deadline_for_all_policies(
    impatient: JudgedGateway, direction: str
) -> None:
    for number in range(24):
        await impatient.enforce(f"word {number}", direction=direction)
    impatient.judge.opinion = lambda _: _late(0.15)
    found = await impatient.chat()
    # With two questions at a time, 24 questions need 12 * 0.15 s. The deadline is 0.6 s.
    assert_error(found, 503, "service_unavailable")
    verdicts = (await impatient.entry(found)).verdicts
    had = [verdict.probability_basis_points for verdict in verdicts]
    assert len(had) == 24
    assert had.count(0) == len(had) - had.count(None)
    assert 0 < had.count(None) < 24


async def test_a_hanging_judge_is_left(impatient: JudgedGateway) -> None:
    await impatient.enforce()
    impatient.judge.opinion = lambda _: hang()
    async with impatient.scripted.leaving_nothing():
        assert_error(await impatient.chat(), 503, "service_unavailable")


async def test_who_watches_does_not_hold_up_who_decides(impatient: JudgedGateway) -> None:
    """Many questions of monitoring policies wait for a slow judge. A question of an enforcing policy is
    asked before them."""
    watched = await impatient.with_tenant()
    for number in range(10):
        await watched.publish(f"word {number}", direction="request")
    await impatient.enforce(direction="request")
    impatient.judge.opinion = lambda asked: _late(0.1) if "word" in asked.question else 0
    for number in range(5):
        assert (await watched.chat(f"watched {number}")).status_code == 200
    assert (await impatient.chat("decided")).status_code == 200
    assert impatient.judge.questions.count("Does it say bomb?") == 1
    assert len(impatient.judge.asked) < 50
    await impatient.scripted.gateway.services.checks.drain()
