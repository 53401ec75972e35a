"""Tests that many completions come from a backend that makes one completion at a time."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.support.backend_calls import PROMPT_BOUND, answering, make, make_call, routed, until
from tests.support.tables import each
from tests.support.upstream import (
    USAGE,
    Peer,
    Upstream,
    Verb,
    answer,
    chat,
    chat_records,
    chunk,
    completion,
    hang,
    refuse,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    unused_url,
)
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded, ProviderRejected
from tollkeeper.core.inference import Opened, UsageReport
from tollkeeper.core.metering import Meter
from tollkeeper.core.usage import ReportedUsage, Usage, added
from tollkeeper.providers.fan_out import FanOutBackend


@asynccontextmanager
async def fanned_out(
    *urls: str, concurrency: int = 16, **settings: Any
) -> AsyncIterator[FanOutBackend]:
    async with routed(*urls, **settings) as backend:
        yield FanOutBackend(backend, concurrency=concurrency)


@each("streamed", [False, True])
async def test_n_of_128(streamed: bool) -> None:
    at_once = most = 0

    async def counted(peer: Peer) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.002)
        at_once -= 1
        await chat()(peer)

    async with Upstream(counted) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=streamed, choices=128))
        outcome.check_complete(choices=128)
        assert {outcome.text(choice) for choice in range(128)} == {"Hello"}
        # Each of the 128 calls contained the prompt.
        assert outcome.meter.charge() == added([Usage(7, 3)] * 128)
        assert len(upstream.requests) == 128
        assert all("n" not in request.json for request in upstream.requests)
        assert 1 < most <= 16
        # Only a connection without a stream is used again at once.
        assert streamed or upstream.connections <= 16


async def test_one_choice_goes_straight_through() -> None:
    async with Upstream(chat()) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(seed=5))
        outcome.check_complete()
        assert upstream.requests[0].json["seed"] == 5


@each(
    ("seed", "sent"),
    [
        (5, {5, 6, 7}),
        (msgspec.Raw(b"5"), {5, 6, 7}),
        (-1, {-1, 0, 1}),
        (2**31 - 3, {2**31 - 3, 2**31 - 2, 2**31 - 1}),
        # The third part would exceed 32 bits, so it counts down.
        (2**31 - 2, {2**31 - 2, 2**31 - 1, 2**31 - 4}),
        (2**31, {2**31, 2**31 + 1, 2**31 + 2}),
        *((limit, {limit, limit - 1, limit - 2}) for limit in (2**31 - 1, 2**32 - 1, 2**63 - 1)),
        (None, {None}),
    ],
)
async def test_every_part_has_its_own_seed(seed: Any, sent: set[int | None]) -> None:
    async with Upstream(chat()) as upstream, fanned_out(upstream.url) as backend:
        (await make(backend, make_call(choices=3, seed=seed))).check_complete(choices=3)
        assert {request.json.get("seed") for request in upstream.requests} == sent


async def test_pieces_of_the_parts_interleave() -> None:
    verb = stream(chat_records([f"{number} " for number in range(5)]), pause_s=0.005)
    async with Upstream(verb) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, choices=3))
        outcome.check_complete(choices=3)
        order = [delta.choice for delta in outcome.deltas]
        assert order != sorted(order)
        assert {outcome.text(choice) for choice in range(3)} == {"0 1 2 3 4 "}


async def test_the_answer_begins_with_the_first_part_that_speaks() -> None:
    async with (
        Upstream(stream(), hang()) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        call = make_call(streamed=True, choices=3)
        async with answering(backend, call, deadline_s=5) as opened_answer:
            assert opened_answer.replica == upstream.url
            first = await opened_answer.next_batch()
            assert isinstance(first[0], Opened)
        await until(lambda: upstream.under_way == 0)


async def test_leaving_stops_every_part() -> None:
    async with Upstream(hang()) as upstream, fanned_out(upstream.url) as backend:
        task = asyncio.create_task(make(backend, make_call(choices=8)))
        await until(lambda: len(upstream.requests) == 8)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: upstream.under_way == 0)


async def test_a_slow_reader_makes_the_parts_wait() -> None:
    sent = 0

    async def pour(peer: Peer) -> None:
        nonlocal sent
        await peer.send_head()
        while not peer.left:
            await peer.send_chunk(sse(chunk("x" * 10_000)))
            sent += 10_000
            await asyncio.sleep(0)

    async with Upstream(pour) as upstream, fanned_out(upstream.url) as backend:
        call = make_call(streamed=True, choices=2, output_tokens_max=8192)
        async with answering(backend, call):
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(0.1)
            # Without a limit for unread data, each of the two streams would send 160 MB.
            assert sent < 40 << 20


# Tests of failures.


@each("streamed", [False, True])
async def test_all_parts_rejected(streamed: bool) -> None:
    waits = itertools.count()

    async def reject_one_after_the_other(peer: Peer) -> None:
        await asyncio.sleep(0.005 * next(waits))
        await refuse(400, "bad")(peer)

    async with (
        Upstream(reject_one_after_the_other) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(streamed=streamed, choices=20))
        assert type(outcome.error) is ProviderRejected
        assert outcome.error.message == "bad"
        assert not outcome.error.charged
        assert not outcome.accepted
        assert len(upstream.requests) <= 16


async def test_a_failure_after_a_part_was_made() -> None:
    async with (
        Upstream(answer(), refuse(500)) as upstream,
        fanned_out(upstream.url, concurrency=1) as backend,
    ):
        outcome = await make(backend, make_call(choices=3))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert len(upstream.requests) == 2


async def test_no_part_can_connect() -> None:
    async with fanned_out(unused_url(), failures_to_eject=1000) as backend:
        outcome = await make(backend, make_call(choices=4))
        assert type(outcome.error) is BackendFailed
        assert not outcome.error.charged


@each("others", [hang(), reset_before_headers()])
async def test_a_failure_while_others_may_run(others: Verb) -> None:
    async with Upstream(refuse(500), others) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(choices=4), deadline_s=0.5)
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert not outcome.accepted
        await until(lambda: upstream.under_way == 0)


@each("streamed", [False, True])
async def test_after_one_failure_the_parts_in_flight_are_read_to_their_end(streamed: bool) -> None:
    good = stream() if streamed else answer()

    async def late(peer: Peer) -> None:
        await asyncio.sleep(0.3)
        await good(peer)

    script = [good, good, good, refuse(500), late]
    async with (
        Upstream(*script) as upstream,
        fanned_out(upstream.url, concurrency=2) as backend,
    ):
        outcome = await make(backend, make_call(streamed=streamed, choices=50))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.message != "The call ended before it was sent for every choice."
        assert outcome.error.charged
        assert len(upstream.requests) <= 6
        answered = len(upstream.requests) - 1
        assert outcome.meter.charge() == added([Usage(7, 3)] * answered)
        texts = [outcome.text(choice) for choice in range(50)]
        assert sorted(filter(None, texts)) == ["Hello"] * answered


async def test_a_part_of_which_nothing_is_known_is_charged_like_the_longest_other() -> None:
    """The connection of the second part breaks before its answer begins, so it may have run."""
    short = completion("Hi", usage={"prompt_tokens": 7, "completion_tokens": 2})
    script = [answer(short), reset_before_headers(), answer()]
    async with Upstream(*script) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(choices=3))
        assert outcome.error is not None
        charge = outcome.meter.charge()
        assert charge.estimated
        exact = [part for part in charge.parts if not part.estimated]
        assert sorted(part.completion_tokens for part in exact) == [2, 3]
        assert [part for part in charge.parts if part.estimated] == [Usage(7, 3, estimated=True)]


async def test_no_reasoning_is_known_of_a_part_that_breaks_off() -> None:
    """The hold limits the reasoning that the client has not seen, but only that of this part."""
    broken = stream([sse(chunk(delta={"reasoning_content": "Hm."}))])
    async with Upstream(broken, stream()) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, choices=3, output_tokens_max=100))
        charge = outcome.meter.charge()
        assert sorted(part.completion_tokens for part in charge.parts) == [3, 3, 100]
        assert charge.prompt_tokens == 3 * 7


async def test_a_part_that_breaks_off() -> None:
    async with (
        Upstream(stream(), reset_after(1), stream()) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(streamed=True, choices=3))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged


async def test_only_parts_that_were_sent_count_as_charged() -> None:
    """Six of the parts wait for a connection when the answer of another part breaks off."""
    async with (
        Upstream(reset_after(1)) as upstream,
        fanned_out(upstream.url, connections_max=2) as backend,
    ):
        outcome = await make(backend, make_call(streamed=True, choices=8))
        assert type(outcome.error) is BackendFailed
        assert len(upstream.requests) < 8
        assert outcome.meter.prompts == len(upstream.requests)
        assert outcome.meter.charge().prompt_tokens == len(upstream.requests) * PROMPT_BOUND


async def test_after_a_rejection_no_part_is_sent() -> None:
    """Two parts are sent and rejected, and the other parts wait for a connection. If they were sent, they
    would still be in flight when the call fails, and the call would count as possibly charged."""
    async with (
        Upstream(refuse(400), refuse(400), hang()) as upstream,
        fanned_out(upstream.url, connections_max=2) as backend,
    ):
        outcome = await make(backend, make_call(choices=8))
        assert type(outcome.error) is ProviderRejected
        assert not outcome.error.charged
        assert len(upstream.requests) == 2


async def test_the_deadline_holds_for_all_parts_together() -> None:
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.02)
    async with Upstream(verb) as upstream, fanned_out(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, choices=4), deadline_s=0.1)
        assert type(outcome.error) is DeadlineExceeded
        assert outcome.error.charged


async def test_a_part_that_fails_with_its_last_piece_fails_the_call() -> None:
    """The last stream has text and an error record in one network read, so its task ends at once."""
    broken = sse(chunk("a")) + sse({"error": {"message": "overloaded", "code": 500}})

    async def late(peer: Peer) -> None:
        await asyncio.sleep(0.05)
        await stream([broken])(peer)

    async with (
        Upstream(stream(), late) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(streamed=True, choices=2))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged


# Tests of usage reports.


@each("usage", [None, "many"])
async def test_only_a_part_without_usage_is_estimated(usage: Any) -> None:
    """Its prompt is that of the others, so their count is used for it."""
    async with (
        Upstream(answer(), answer(completion("Hello, you", usage=usage)), answer()) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(choices=3))
        outcome.check_complete(choices=3)
        charge = outcome.meter.charge()
        assert charge.estimated
        assert sorted((part.estimated, part.prompt_tokens) for part in charge.parts) == [
            *((False, 7), (False, 7)),
            (True, 7),
        ]
        exact = sum(part.completion_tokens for part in charge.parts if not part.estimated)
        assert exact == 6


async def test_an_impossible_usage_of_one_part_is_for_a_person_to_check() -> None:
    wrong = completion(usage={**USAGE, "prompt_tokens": -1})
    async with (
        Upstream(answer(), answer(wrong), answer()) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(choices=3))
        assert outcome.meter.usage is None
        assert outcome.meter.reported_impossible_usage


async def test_a_part_that_reports_no_output_is_counted() -> None:
    """All parts send the same text, and one reports zero completion tokens."""
    usage = {**USAGE, "completion_tokens": 0, "total_tokens": USAGE["prompt_tokens"]}
    async with (
        Upstream(answer(), answer(completion(usage=usage))) as upstream,
        fanned_out(upstream.url) as backend,
    ):
        outcome = await make(backend, make_call(choices=2))
        charge = outcome.meter.charge()
        assert charge.estimated
        silent, reported = sorted(charge.parts, key=lambda part: not part.estimated)
        assert reported.completion_tokens == USAGE["completion_tokens"]
        assert silent.completion_tokens > 0
        assert silent.prompt_tokens == reported.prompt_tokens == USAGE["prompt_tokens"]


def test_the_usage_of_parts() -> None:
    """Each part contained the prompt, so the prompt is charged once for each part."""

    def report(prompt: int, completion: int, **fields: Any) -> ReportedUsage:
        return ReportedUsage(prompt_tokens=prompt, completion_tokens=completion, **fields)

    first = report(10, 3, cached_tokens=8, prompt_details={"cached_tokens": 8}, cost_picousd=5)
    # The reasoning is not part of the completion tokens, as the total shows.
    second = report(10, 5, total_tokens=17, reasoning_tokens=2, cost_picousd=6)
    meter = Meter(make_call(choices=2), 2 * PROMPT_BOUND, prompts=2)
    parts = [Meter(make_call(), 0) for _ in range(2)]
    for part, reported in zip(parts, (first, second), strict=True):
        part.count([UsageReport(reported)])
    meter.set_parts(parts)
    usage = meter.charge()
    assert usage == Usage(20, 10, 8, 2, prompt_details={"cached_tokens": 8}, parts=usage.parts)
    assert meter.report.cost_picousd == 11
