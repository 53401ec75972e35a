"""Tests that the judge's tokens are counted by organization, and that a bill for calls and questions
together matches the ledger."""

import asyncio
import io
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.databases import own_database
from tests.support.judged_gateway import (
    LIKELY,
    JudgedGateway,
    judge_answer,
    judge_answer_of,
    judged_gateway,
)
from tests.support.scripted_gateway import COMPLETION_PRICE, PROMPT_PRICE
from tests.support.upstream import Peer, answer, completion, hang, refuse
from tollkeeper.core.reports import DayRange
from tollkeeper.reports.bills.service import (
    Bill,
    BillColumns,
    BillComparison,
    BillReconciliation,
    Figure,
    read_bill,
)
from tollkeeper.reports.bills.store import Tolerance
from tollkeeper.reports.rollups import JudgeUsage

_ALL_DAYS = DayRange(0, 1_000_000)


async def _usage(judged: JudgedGateway) -> list[JudgeUsage]:
    services = judged.scripted.gateway.services
    await services.judge_costs.write()
    organization_id = judged.scripted.tenant.organization_id
    return await services.judge_costs.judge_usage(organization_id, _ALL_DAYS)


async def test_the_judges_tokens_are_counted_by_organization(judged: JudgedGateway) -> None:
    other = await judged.with_tenant()
    for tenant, calls in ((judged, 3), (other, 1)):
        await tenant.enforce(direction="both")
        for number in range(calls):
            await tenant.chat(f"Hello {number}")
    (mine,), (others,) = await _usage(judged), await _usage(other)
    # All answers have the same text, but each answers another request, so the judge reads each one.
    assert (mine.questions, mine.input_tokens, mine.output_tokens) == (6, 6 * 7, 6 * 3)
    assert (others.questions, others.input_tokens, others.output_tokens) == (2, 2 * 7, 2 * 3)
    assert (mine.backend, mine.model, mine.unreported_questions) == ("judge", "the-judge", 0)
    assert mine.cost_picousd == 0  # clients cannot call this model, so it has no price


async def test_a_verdict_from_the_cache_costs_nothing(judged: JudgedGateway) -> None:
    await judged.enforce(direction="request")
    for _ in range(3):
        await judged.chat("Hello")
    (used,) = await _usage(judged)
    assert used.questions == 1


async def test_questions_whose_tokens_are_not_known_are_counted_apart(
    data_dir: Path, conninfo: str
) -> None:
    async with judged_gateway(data_dir, conninfo, judge={"deadline_s": 0.5}) as judged:
        await judged.enforce(direction="request")
        for verb, unreported in ((refuse(400), 0), (hang(), 1), (judge_answer(0, None), 2)):
            judged.judge.opinion = lambda _, verb=verb: verb  # type: ignore[misc]
            await judged.chat(f"Hello {unreported}")
            assert sum(used.unreported_questions for used in await _usage(judged)) == unreported
        (used,) = await _usage(judged)
        assert (used.questions, used.input_tokens) == (2, 0)


async def test_an_answer_that_is_no_verdict_is_counted_too(judged: JudgedGateway) -> None:
    await judged.enforce(direction="request")
    judged.judge.opinion = lambda _: judge_answer_of([("Maybe", -0.1)])
    assert (await judged.chat("Hello")).status_code == 503
    (used,) = await _usage(judged)
    assert (used.questions, used.input_tokens) == (1, 7)


async def test_sums_that_could_not_be_written_are_kept(
    judged: JudgedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await judged.enforce(direction="request")
    await judged.chat("Hello")
    costs = judged.scripted.gateway.services.judge_costs
    with monkeypatch.context() as patch:
        patch.setattr(costs, "_database", None)
        with pytest.raises(AttributeError):
            await costs.write()
    await judged.chat("Hello again")
    (used,) = await _usage(judged)
    assert used.questions == 2


# The judge is the same backend that serves calls.


class Provider:
    """Simulates a server that answers calls and questions, and bills the usage that it reported."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self.billed: Counter[str] = Counter()

    async def __call__(self, peer: Peer) -> None:
        request = peer.request.json
        prompt, cached, output = (self._random.randint(1, 900) for _ in range(3))
        cached = min(cached, prompt)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        self.billed += Counter(requests=1, input=prompt, cached=cached, output=output)
        if not request.get("logprobs"):
            await answer(completion("All is well.", usage=usage))(peer)
            return
        likely = LIKELY if "and a bomb" in request["messages"][-1]["content"] else 100
        await judge_answer(likely, usage)(peer)

    def bill(self, **more: int) -> Bill:
        today = datetime.now(UTC).date()
        counts = {name: self.billed[name] + more.get(name, 0) for name in self.billed}
        line = ",".join(str(counts[name]) for name in ("requests", "input", "cached", "output"))
        columns = BillColumns(
            "day",
            "model",
            {
                Figure.REQUESTS: "requests",
                Figure.INPUT_TOKENS: "input",
                Figure.CACHED_INPUT_TOKENS: "cached",
                Figure.OUTPUT_TOKENS: "output",
            },
        )
        header = "day,model,requests,input,cached,output\n"
        return read_bill(io.StringIO(f"{header}{today},upstream-chat,{line}\n"), columns)


@pytest.fixture(scope="module")
def own_books(shared_conninfo: str) -> str:
    return own_database(shared_conninfo, "judge_costs")


async def test_a_bill_for_calls_and_judge_matches_to_the_last_token(
    data_dir: Path, own_books: str
) -> None:
    provider = Provider()
    judge = {"backend": "scripted", "model": "upstream-chat"}
    async with judged_gateway(data_dir, own_books, judge=judge) as shared:
        other = await shared.with_tenant()
        for tenant in (shared, other):
            await tenant.enforce(direction="both")
            await tenant.publish("gun", mode="monitoring", direction="response")
        shared.model.play(provider)
        texts = [f"Hello {number}" + " and a bomb" * (number % 5 == 0) for number in range(10)]
        calls = [tenant.chat(text) for tenant in (shared, other) for text in texts]
        found = await asyncio.gather(*calls)
        assert Counter(one.status_code for one in found) == {200: 16, 403: 4}
        for one in found:
            await shared.entry(one)
        services = shared.scripted.gateway.services
        await services.judge_costs.write()

        async def reconcile(bill: Bill) -> BillComparison:
            return await BillReconciliation(services.database).ledger_reconcile(
                "scripted",
                bill,
                catalog=services.catalog.catalog,
                names={},
                tolerance=Tolerance(),
            )

        assert provider.billed["requests"] == 16 + 20 + 16 * 2
        assert (await reconcile(provider.bill())).differences == []
        for figure in ("requests", "input", "cached", "output"):
            (differing,) = (await reconcile(provider.bill(**{figure: 1}))).differences
            assert differing.kind == "differs"
        # The catalogue has a price for this model, so the cost of judging is known.
        (used,) = await _usage(shared)
        uncached = used.input_tokens * PROMPT_PRICE + used.output_tokens * COMPLETION_PRICE
        assert 0 < used.cost_picousd <= uncached
