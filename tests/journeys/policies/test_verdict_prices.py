"""Tests the price per verdict: it is held before the judge is asked, and charged for each verdict made."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import (
    LIKELY,
    UNLIKELY,
    JudgedGateway,
    Opinion,
    assert_denied,
    judge_answer,
    judge_answer_of,
    judged_gateway,
)
from tests.support.raw_caller import raw_caller
from tests.support.scripted_gateway import COST, MODEL, Entry, eventually, read_stream
from tests.support.upstream import Peer, chat, chat_records, hang, refuse, reset_after, stream
from tollkeeper.domain.caps import CapPeriod
from tollkeeper.domain.money import usd_from_picousd

PRICE_USD = "0.000150000001"
PRICE = 150_000_001  # picousd
_SEGMENT = 20  # characters
_NO_VERDICT = judge_answer_of([("Perhaps", 0.0)])


@pytest.fixture(scope="module")
async def shared_priced(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    judge = {"price_per_verdict_usd": PRICE_USD, "segment_characters": _SEGMENT}
    async with judged_gateway(data_dir, conninfo, judge=judge) as running:
        yield running


@pytest.fixture
async def priced(shared_priced: JudgedGateway) -> JudgedGateway:
    return await shared_priced.for_next_test()


@pytest.fixture(scope="module")
async def shared_overlapping(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    """Starts a gateway that judges requests while the backend works, and that reads the answer of an
    abandoned call for only 0.2 seconds."""
    judge = {"price_per_verdict_usd": PRICE_USD, "overlap": True}
    async with judged_gateway(data_dir, conninfo, judge=judge, drain_s=0.2) as running:
        yield running


@pytest.fixture
async def overlapping(shared_overlapping: JudgedGateway) -> JudgedGateway:
    return await shared_overlapping.for_next_test()


async def _charged(judged: JudgedGateway, found: httpx2.Response | str) -> tuple[Entry, int]:
    """Returns the call's ledger entry, and the amount that the ledger charges for its verdicts."""
    request_id = found if isinstance(found, str) else found.headers["x-request-id"]
    entry = await judged.scripted.entry(request_id)
    assert entry is not None
    ((verdicts,),) = await judged.scripted.sql(
        "SELECT coalesce(sum(verdict), 0) FROM resolutions WHERE reservation_id = %s", request_id
    )
    return entry, verdicts


async def _unjudged_hold(judged: JudgedGateway, **fields: Any) -> int:
    """Makes a call without policies and returns its hold."""
    return (await judged.scripted.entry_of(await judged.chat(**fields))).hold


async def test_a_verdict_has_no_price_by_default(judged: JudgedGateway) -> None:
    unjudged = await _unjudged_hold(judged)
    await judged.enforce()
    entry, verdicts = await _charged(judged, found := await judged.chat())
    assert found.status_code == 200
    assert (entry.hold, entry.cost, verdicts) == (unjudged, COST, 0)
    entry, verdicts = await _charged(judged, await judged.chat("a bomb"))
    assert (entry.status, verdicts) == ("released", 0)


async def test_each_policy_and_side_is_one_verdict(priced: JudgedGateway) -> None:
    unjudged = await _unjudged_hold(priced)
    await priced.enforce("bomb")
    await priced.enforce("gun", direction="request")
    await priced.enforce("knife", direction="response")
    found = await priced.chat()
    assert found.status_code == 200
    entry, verdicts = await _charged(priced, found)
    assert (entry.status, entry.hold) == ("settled", unjudged + 4 * PRICE)
    assert (entry.cost, verdicts) == (COST + 4 * PRICE, 4 * PRICE)
    assert (await priced.entry(found)).cost_picousd == entry.cost
    assert (await priced.scripted.balance())["settled"] == COST + entry.cost
    report = await priced.scripted.gateway.client.get(
        "/v1/organization/costs",
        params={"start_time": int(time.time()) - 86_400, "group_by": "line_item"},
        headers=priced.scripted.tenant.as_admin,
    )
    lines = {
        line["line_item"]: line["amount"]["value"]
        for bucket in report.json()["data"]
        for line in bucket["results"]
    }
    assert lines[f"{MODEL}, verdict"] == usd_from_picousd(4 * PRICE)


async def test_a_denied_request_pays_for_its_verdicts_only(priced: JudgedGateway) -> None:
    policy = await priced.enforce()
    await priced.enforce("gun", direction="request")
    dispatched = len(priced.model.requests)
    found = await priced.chat("a bomb")
    assert_denied(found, policy, "request")
    assert len(priced.model.requests) == dispatched
    entry, verdicts = await _charged(priced, found)
    assert (entry.status, entry.cost, verdicts) == ("settled", 2 * PRICE, 2 * PRICE)
    activity = await priced.entry(found)
    assert (activity.cost_picousd, activity.usage, activity.backend) == (2 * PRICE, None, None)
    assert (await priced.scripted.balance())["settled"] == 2 * PRICE


async def test_monitoring_is_free(priced: JudgedGateway) -> None:
    """Monitoring must not fail a call, so it must not need credit."""
    unjudged = await _unjudged_hold(priced, text="a bomb")
    await priced.publish()
    found = await priced.chat("a bomb")
    assert found.status_code == 200
    assert len((await priced.entry(found)).verdicts) == 2
    entry, verdicts = await _charged(priced, found)
    assert (entry.hold, entry.cost, verdicts) == (unjudged, COST, 0)


async def test_a_missing_verdict_is_free(priced: JudgedGateway) -> None:
    await priced.enforce()
    await priced.enforce("gun", direction="request")
    priced.judge.opinion = lambda asked: UNLIKELY if "gun" in asked.question else _NO_VERDICT
    found = await priced.chat()
    assert_error(found, 503, "service_unavailable")
    entry, verdicts = await _charged(priced, found)
    assert (entry.status, entry.cost, verdicts) == ("settled", PRICE, PRICE)
    priced.judge.opinion = lambda _: _NO_VERDICT
    entry, verdicts = await _charged(priced, await priced.chat("Hello again"))
    assert (entry.status, verdicts) == ("released", 0)


async def test_a_cached_verdict_has_its_price(priced: JudgedGateway) -> None:
    await priced.enforce(direction="request")
    for _ in range(2):
        _, verdicts = await _charged(priced, await priced.chat("The same text"))
        assert verdicts == PRICE
    assert len(priced.judge.asked) == 1


@pytest.mark.parametrize("word", ["bomb", "nothing"])
async def test_all_segments_of_a_stream_are_one_verdict(priced: JudgedGateway, word: str) -> None:
    await priced.enforce(word)
    pieces = ["twenty characters ok", " and twenty more of it", " a bomb", " goes off somewhere"]
    priced.model.play(stream(chat_records(pieces)))
    found = await priced.chat(stream=True)
    assert (read_stream(found.text).error is not None) == (word == "bomb")
    assert len(priced.judge.asked) > 2
    entry, verdicts = await _charged(priced, found)
    assert (entry.status, entry.cost, verdicts) == ("settled", COST + 2 * PRICE, 2 * PRICE)
    await priced.scripted.balance()


async def test_a_call_that_the_backend_refuses_pays_for_its_verdicts(
    priced: JudgedGateway, overlapping: JudgedGateway, judged: JudgedGateway
) -> None:
    """The backend's usage does not count the rejected request. The other gateways of this file write to
    the same table, so they must first write all records of earlier tests."""
    before = await _billed(judged, overlapping, priced)
    await priced.enforce()
    priced.model.play(refuse(400))
    found = await priced.chat()
    assert found.status_code == 422
    entry, verdicts = await _charged(priced, found)
    assert (entry.status, entry.cost, verdicts) == ("settled", PRICE, PRICE)
    priced.model.play(chat())
    await priced.entry(await priced.chat())
    requests, cost = await _billed(priced)
    assert (requests - before[0], cost - before[1]) == (1, COST)


async def _billed(*gateways: JudgedGateway) -> tuple[int, int]:
    for gateway in gateways:
        await _write_records(gateway)
    ((requests, cost),) = await gateways[0].scripted.sql(
        "SELECT coalesce(sum(requests), 0)::bigint, coalesce(sum(cost), 0) FROM backend_usage"
    )
    return requests, cost


async def _write_records(gateway: JudgedGateway) -> None:
    """Waits until all calls have ended and their records are written."""
    services = gateway.scripted.gateway.services
    await eventually(lambda: services.inference.running == 0)
    await services.recorder.drain()
    await services.activity.drain()


@pytest.mark.parametrize("limit", ["credit", "cap"])
async def test_credit_and_caps_have_to_cover_the_verdicts(
    priced: JudgedGateway, limit: str
) -> None:
    needed = await _unjudged_hold(priced) + 2 * PRICE
    for amount, status in ((needed - 1, 402), (needed, 200)):
        poor = await priced.with_tenant(credit=amount if limit == "credit" else 10**13)
        await poor.enforce()
        if limit == "cap":
            await poor.scripted.gateway.services.caps.cap_set(
                poor.scripted.tenant.organization_id, amount, CapPeriod.TOTAL
            )
        found = await poor.chat()
        assert found.status_code == status, found.text
        await poor.scripted.balance()


async def test_policies_of_the_request_are_held_for(priced: JudgedGateway) -> None:
    unjudged = await _unjudged_hold(priced)
    attached = await priced.enforce("bomb", direction="request")
    named = await priced.enforce("gun", scope="unattached")
    found = await priced.chat(policy_ids=[named.id, attached.id, named.id])
    entry, verdicts = await _charged(priced, found)
    assert (entry.hold, verdicts) == (unjudged + 3 * PRICE, 3 * PRICE)


async def test_tenants_pay_for_their_own_verdicts(priced: JudgedGateway) -> None:
    """Calls of two tenants are admitted together. A tenant cannot use the other tenant's policy."""
    mine = await priced.enforce()
    other = await priced.with_tenant()
    answers = await asyncio.gather(
        *(priced.chat(str(number)) for number in range(8)),
        *(other.chat(str(number)) for number in range(8)),
        *(other.chat(policy_ids=[mine.id]) for _ in range(4)),
    )
    assert [found.status_code for found in answers] == [200] * 16 + [404] * 4
    assert (await priced.scripted.balance())["settled"] == 8 * (COST + 2 * PRICE)
    assert (await other.scripted.balance())["settled"] == 8 * COST


async def test_a_client_that_leaves_pays_for_the_verdicts_it_got(
    overlapping: JudgedGateway,
) -> None:
    """The request has a verdict. The call ends before there is a verdict on the answer."""
    await overlapping.enforce()
    is_answer = asyncio.Event()

    async def hang_on_answers(peer: Peer) -> None:
        is_answer.set()
        await hang()(peer)

    overlapping.judge.opinion = lambda asked: hang_on_answers if asked.context else UNLIKELY
    async with raw_caller(overlapping.scripted) as caller:
        await caller.ask()
        await eventually(is_answer.is_set)
        caller.leave(abruptly=True)
    await eventually(lambda: overlapping.scripted.gateway.services.inference.running == 0)
    (entry,) = await overlapping.scripted.entries()
    assert (entry.status, entry.cost) == ("settled", COST + PRICE)
    await overlapping.scripted.balance()


async def test_a_process_that_dies_before_the_settlement_leaves_all_of_the_hold(
    priced: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict was made, but the cost is unknown until the call is resolved, which happens once."""
    await priced.enforce(direction="request")
    services = priced.scripted.gateway.services
    resolve = services.ledger.resolve
    lost: list[tuple[Any, ...]] = []
    written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def lose(*resolution: Any) -> asyncio.Future[bool]:
        lost.append(resolution)
        return written

    monkeypatch.setattr(services.ledger, "resolve", lose)
    calling = asyncio.create_task(priced.chat("a bomb"))
    await eventually(lambda: bool(lost))
    (held,) = await priced.scripted.entries()
    assert (held.status, held.cost) == ("held", 0)
    await _forget_process(priced)
    await services.recovery.ledger_recover()
    (entry,) = await priced.scripted.entries()
    assert (entry.status, entry.hold, entry.cost) == ("unsettled", held.hold, 0)
    # The process was not dead: its first settlement counts, and a second settlement does not.
    assert await resolve(*lost[0])
    assert not await resolve(*lost[0])
    written.set_result(True)
    entry, verdicts = await _charged(priced, await calling)
    assert (entry.status, entry.cost, verdicts) == ("settled", PRICE, PRICE)
    assert (await priced.scripted.balance())["settled"] == PRICE


async def _forget_process(judged: JudgedGateway) -> None:
    """Assigns the tenant's holds to a process that does not exist."""
    async with judged.scripted.gateway.services.database.transaction() as connection:
        await connection.execute(
            "UPDATE reservations SET process_id = %s WHERE organization_id = %s",
            (uuid4(), judged.scripted.tenant.organization_id),
        )


async def test_a_fault_between_verdict_and_settlement_charges_nothing(
    priced: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await priced.enforce(direction="request")
    services = priced.scripted.gateway.services

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(services.inference, "_deliver", cancelled)
    with pytest.raises(httpx2.TransportError):
        await priced.chat()
    (entry,) = await priced.scripted.entries()
    assert (entry.status, entry.cost) == ("unsettled", 0)
    await priced.scripted.balance()


async def test_a_verdict_that_comes_after_its_call_is_free(overlapping: JudgedGateway) -> None:
    """With `judge.overlap`, the backend may fail before the verdict. The verdict is still recorded."""
    await overlapping.enforce(direction="request")
    decided = asyncio.Event()

    async def decide(peer: Peer) -> None:
        await decided.wait()
        await judge_answer(LIKELY)(peer)

    overlapping.judge.opinion = lambda _: decide
    overlapping.model.play(refuse(400))
    found = await overlapping.chat()
    assert found.status_code == 422
    decided.set()
    (verdict,) = (await overlapping.entry(found)).verdicts
    assert verdict.probability_basis_points == LIKELY
    entry, verdicts = await _charged(overlapping, found)
    assert (entry.status, verdicts) == ("released", 0)


@pytest.mark.parametrize("seed", range(2))
async def test_the_charge_is_the_price_of_the_recorded_verdicts(
    priced: JudgedGateway, seed: int
) -> None:
    """This is true for random policies, verdicts and answers, and while policies are published."""
    draw = random.Random(seed)
    named = []
    for number in range(6):
        fields = {
            "direction": draw.choice(["request", "response", "both"]),
            "mode": draw.choice(["enforcing", "enforcing", "monitoring"]),
            "scope": draw.choice(["organization", "unattached"]),
        }
        policy = await priced.publish(f"word{number}", **fields)
        if fields["scope"] == "unattached":
            named.append(policy.id)
    opinions: list[Opinion] = [*[UNLIKELY] * 12, LIKELY, _NO_VERDICT]
    priced.judge.opinion = lambda _: draw.choice(opinions)
    models = [chat(), chat(), refuse(400), reset_after(2), stream(chat_records(["x" * 30] * 3))]

    async def call(number: int) -> str:
        chosen = draw.sample(named, draw.randint(0, len(named)))
        found = await priced.chat(f"{seed} {number}", stream=draw.random() < 0.5, policy_ids=chosen)
        return str(found.headers["x-request-id"])

    for turn in range(4):
        priced.model.play(draw.choice(models))
        publishing = asyncio.create_task(priced.enforce(f"later{turn}"))
        answered = await asyncio.gather(*(call(5 * turn + number) for number in range(5)))
        await publishing
    # `entry` waits until all calls are recorded.
    await priced.entry(answered[-1])
    found = await priced.scripted.sql(_RECORDED, priced.scripted.tenant.organization_id)
    # The query does not return calls whose cost is unknown.
    assert sum(charged for charged, _, _ in found) > 0
    assert [row for row in found if row[0] != PRICE * row[1] or row[2]] == []
    await priced.scripted.balance()


# Returns for each resolved call: the charge for its verdicts, the number of recorded verdicts of
# enforcing policies (without missing verdicts), and the overage.
_RECORDED: LiteralString = """
    SELECT d.verdict, count(v.mode), coalesce(max(o.amount), 0)
    FROM resolutions d
    LEFT JOIN policy_verdicts v ON v.organization_id = d.organization_id
        AND v.request_id = d.reservation_id AND v.mode = 'enforcing'
        AND v.probability_basis_points IS NOT NULL
    LEFT JOIN overages o ON o.organization_id = d.organization_id
        AND o.reservation_id = d.reservation_id
    WHERE d.organization_id = %s GROUP BY d.reservation_id, d.verdict
"""
