"""Tests which failures eject a replica, and how an ejected replica gets calls again."""

import asyncio
from uuid import uuid4

import pytest

from tests.providers.replicas import calls_of, pair
from tests.support.backend_calls import answering, make, make_call, routed, skip_time, until
from tests.support.tables import each
from tests.support.upstream import (
    Peer,
    Upstream,
    Verb,
    answer,
    chat,
    chunk,
    completion,
    hang,
    refuse,
    reset_after,
    sse,
    stream,
)
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded
from tollkeeper.providers import event_reader


@each("status", [401, 402, 403, 404, 408, 413, 424, 498, 499])
async def test_what_a_caller_can_provoke_does_not_eject(status: int) -> None:
    in_the_answer = {"error": {"message": "no", "code": status}}
    for verb in (refuse(status), answer(in_the_answer)):
        async with pair(verb, failures_to_eject=1) as replicas:
            for _ in range(3):
                assert type((await replicas.call()).error) is BackendFailed
            assert replicas.state == "healthy"


async def test_an_answer_that_is_too_large_does_not_eject() -> None:
    large = answer(completion("x" * 5000))
    async with pair(large, failures_to_eject=1, body_bytes_max=4096) as replicas:
        assert type((await replicas.call()).error) is BackendFailed
        assert replicas.state == "healthy"


async def test_a_record_that_is_too_large_does_not_eject() -> None:
    large = chunk("a")
    top = [{"token": f"token {rank}", "logprob": -9.5} for rank in range(25_000)]
    large["choices"][0]["logprobs"] = {"content": [{"token": "a", "top_logprobs": top}]}
    async with pair(stream([sse(large)]), failures_to_eject=1) as replicas:
        failed = await replicas.call(streamed=True)
        assert "a record is too large" in str(failed.error)
        assert replicas.state == "healthy"


async def test_images_that_are_too_large_do_not_eject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "_IMAGE_CHARACTERS_MAX", 1000)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'a' * 1000}"}}
    large = chunk("a")
    large["choices"][0]["delta"]["images"] = [image]
    async with pair(stream([sse(large)]), failures_to_eject=1) as replicas:
        failed = await replicas.call(streamed=True)
        assert "its images are too large" in str(failed.error)
        assert replicas.state == "healthy"


@each("status", [500, 502, 503, 504, 520, 524, 529])
async def test_what_no_caller_can_provoke_ejects(status: int) -> None:
    async with pair(refuse(status), failures_to_eject=1) as replicas:
        assert type((await replicas.call()).error) is BackendFailed
        assert replicas.state == "ejected"


async def test_a_refused_account_ejects() -> None:
    message = "You have reached your specified API usage limits."
    async with pair(refuse(400, message), failures_to_eject=1) as replicas:
        assert type((await replicas.call()).error) is BackendFailed
        assert replicas.state == "ejected"


async def test_ejection_and_return() -> None:
    async with pair(
        refuse(500), failures_to_eject=3, ejection_s=100, ejection_s_max=400
    ) as replicas:
        for _ in range(3):
            assert replicas.state == "healthy"
            assert type((await replicas.call()).error) is BackendFailed
        assert replicas.state == "ejected"
        assert replicas.backend.health().detail == "1 of 2 replicas healthy"
        for _ in range(5):
            (await replicas.call()).check_complete()
        assert calls_of(replicas.watched, replicas.spare) == [3, 5]
        replicas.watched.play(chat())
        skip_time(100)
        (await replicas.call()).check_complete()
        assert replicas.state == "healthy"
        (await replicas.call()).check_complete()
        assert calls_of(replicas.watched, replicas.spare) == [5, 5]


@each("verb", [refuse(500), reset_after(1), stream([sse(chunk("a"))])])
async def test_the_last_healthy_replica_is_never_ejected(verb: Verb) -> None:
    """No number of failures of any organization ejects it: no other replica could answer calls."""
    async with Upstream(verb) as upstream, routed(upstream.url, failures_to_eject=1) as backend:
        for _ in range(10):
            assert (await make(backend, make_call(streamed=True))).error is not None
        assert backend.health().replicas == {upstream.url: "failing"}
        upstream.play(chat())
        (await make(backend, make_call())).check_complete()
        assert backend.health().ready


async def test_of_two_replicas_that_fail_one_stays() -> None:
    async with pair(refuse(500), failures_to_eject=1, ejection_s=10) as replicas:
        replicas.spare.play(refuse(500))
        for _ in range(10):
            assert type((await replicas.call()).error) is BackendFailed
        assert sorted(replicas.backend.health().replicas.values()) == ["ejected", "failing"]
        replicas.spare.play(chat())
        (await replicas.call()).check_complete()


async def test_one_organization_does_not_eject_what_others_use() -> None:
    """A hostile client causes failures as fast as it can, while another organization uses the backend."""
    hostile, quiet = uuid4(), uuid4()
    async with pair(refuse(500)) as replicas:
        (await replicas.call(replicas.spare, organization=quiet)).check_complete()
        for _ in range(20):
            assert type((await replicas.call(organization=hostile)).error) is BackendFailed
        assert replicas.state == "healthy"
        replicas.watched.play(chat())
        (await replicas.call(organization=quiet)).check_complete()


async def test_failures_of_two_organizations_eject() -> None:
    async with pair(refuse(500)) as replicas:
        one, other = uuid4(), uuid4()
        (await replicas.call(replicas.spare, organization=other)).check_complete()
        for organization in (one, one, one, one, other):
            assert replicas.state == "healthy"
            assert type((await replicas.call(organization=organization)).error) is BackendFailed
        assert replicas.state == "ejected"


async def test_an_organization_that_is_alone_is_enough() -> None:
    alone = uuid4()
    async with pair(refuse(500)) as replicas:
        for _ in range(3):
            assert replicas.state == "healthy"
            await replicas.call(organization=alone)
        assert replicas.state == "ejected"


async def test_a_success_between_failures_makes_them_few() -> None:
    async with pair(refuse(500)) as replicas:
        for _ in range(5):
            replicas.watched.play(refuse(500))
            for _ in range(2):
                await replicas.call()
            replicas.watched.play(chat())
            (await replicas.call()).check_complete()
        assert replicas.state == "healthy"


async def test_the_own_deadline_of_a_call_does_not_eject() -> None:
    async with pair(hang(), failures_to_eject=1) as replicas:
        for streamed in (False, True):
            outcome = await replicas.call(deadline_s=0.05, streamed=streamed)
            assert type(outcome.error) is DeadlineExceeded
        assert replicas.state == "healthy"


async def test_half_open_lets_one_call_through() -> None:
    async with pair(refuse(500), failures_to_eject=1, ejection_s=100) as replicas:
        await replicas.call()
        released = asyncio.Event()

        async def wait(peer: Peer) -> None:
            await released.wait()
            await answer()(peer)

        replicas.watched.play(wait)
        skip_time(100)
        probe = asyncio.create_task(replicas.call())
        await until(lambda: len(replicas.watched.requests) == 2)
        assert replicas.state == "probing"
        for outcome in await asyncio.gather(*(replicas.call() for _ in range(10))):
            outcome.check_complete()
        assert calls_of(replicas.watched, replicas.spare) == [2, 10]
        released.set()
        (await probe).check_complete()
        assert replicas.state == "healthy"


async def test_a_retry_does_not_join_the_probe_of_another_call() -> None:
    async def refuse_slowly(peer: Peer) -> None:
        await asyncio.sleep(0.05)
        await refuse(500)(peer)

    async with pair(refuse_slowly, retries=1, failures_to_eject=1, ejection_s=100) as replicas:
        (await replicas.call()).check_complete()
        assert replicas.state == "ejected"
        replicas.spare.play(refuse_slowly)
        skip_time(100)
        retrying = asyncio.create_task(replicas.call(replicas.spare))
        await until(lambda: len(replicas.spare.requests) == 2)
        probing = asyncio.create_task(replicas.call())
        outcomes = await asyncio.gather(retrying, probing)
        assert {type(outcome.error) for outcome in outcomes} == {BackendFailed}
        assert len(replicas.watched.requests) == 2


async def test_a_cancelled_probe_is_released() -> None:
    async with pair(refuse(500), hang(), chat(), failures_to_eject=1, ejection_s=100) as replicas:
        await replicas.call()
        skip_time(100)
        probe = asyncio.create_task(replicas.call())
        await until(lambda: len(replicas.watched.requests) == 2)
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        (await replicas.call()).check_complete()
        assert len(replicas.watched.requests) == 3


@each(
    "verb", [stream([sse(chunk("a"))]), stream([sse(chunk("a")), b"data: x\n\n"]), reset_after(1)]
)
async def test_answers_that_break_off_eject(verb: Verb) -> None:
    async with pair(verb, failures_to_eject=2) as replicas:
        for _ in range(2):
            outcome = await replicas.call(streamed=True)
            assert outcome.text().startswith(("a", "0"))
        assert replicas.state == "ejected"


async def test_a_long_answer_that_meets_the_deadline_does_not_eject() -> None:
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.01)
    async with pair(verb, failures_to_eject=1) as replicas:
        outcome = await replicas.call(deadline_s=0.05, streamed=True)
        assert type(outcome.error) is DeadlineExceeded
        assert replicas.state == "healthy"


async def test_a_caller_that_leaves_does_not_eject() -> None:
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.01)
    async with pair(verb, failures_to_eject=1) as replicas:
        call = make_call(streamed=True, affinity=replicas.preferring(replicas.watched))
        async with answering(replicas.backend, call):
            pass
        task = asyncio.create_task(replicas.call(streamed=True))
        await until(lambda: len(replicas.watched.requests) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert replicas.state == "healthy"


async def test_an_outage_of_one_replica_costs_few_calls_and_ends_soon() -> None:
    """A replica fails for a while under steady traffic. It gets few calls, no client sees an error,
    and the replica becomes healthy again after the outage."""
    async with pair(refuse(503), retries=1, ejection_s=50, ejection_s_max=200) as replicas:
        for _ in range(200):
            (await replicas.call()).check_complete()
            skip_time(10)
        assert len(replicas.watched.requests) < 50
        replicas.watched.play(chat())
        while replicas.state != "healthy":
            (await replicas.call()).check_complete()
            skip_time(10)
