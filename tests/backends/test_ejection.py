"""Which failures eject a replica, and how it comes back."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from tests.backends.replicas import calls_of, upstreams
from tests.support.backend_calls import make, make_call, routed, until
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
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    Unavailable,
)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 413, 424, 498, 499])
async def test_what_a_caller_can_provoke_does_not_eject(status: int) -> None:
    in_the_answer = {"error": {"message": "no", "code": status}}
    for verb in (refuse(status), answer(in_the_answer)):
        async with Upstream(verb) as upstream, routed(upstream.url, failures_to_eject=1) as backend:
            for _ in range(3):
                assert type((await make(backend, make_call())).error) is BackendFailed
            assert backend.health().ready


async def test_an_answer_that_is_too_large_does_not_eject() -> None:
    async with (
        Upstream(answer(completion("x" * 5000))) as upstream,
        routed(upstream.url, failures_to_eject=1, body_bytes_max=4096) as backend,
    ):
        assert type((await make(backend, make_call())).error) is BackendFailed
        assert backend.health().ready


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 524, 529])
async def test_what_no_caller_can_provoke_ejects(status: int) -> None:
    async with (
        Upstream(refuse(status)) as upstream,
        routed(upstream.url, failures_to_eject=1) as backend,
    ):
        assert type((await make(backend, make_call())).error) is BackendFailed
        assert backend.health().replicas == {upstream.url: "ejected"}


async def test_ejection_and_return() -> None:
    async with (
        Upstream(refuse(500)) as upstream,
        routed(upstream.url, failures_to_eject=3, ejection_s=0.1, ejection_s_max=0.4) as backend,
    ):
        for _ in range(3):
            assert backend.health().ready
            assert type((await make(backend, make_call())).error) is BackendFailed
        assert backend.health().replicas == {upstream.url: "ejected"}
        assert not backend.health().ready
        assert backend.health().detail == "0 of 1 replicas healthy"
        for _ in range(5):
            outcome = await make(backend, make_call())
            assert type(outcome.error) is Unavailable
            assert outcome.error.retry_after_s == 1
            assert not outcome.error.charged
        assert len(upstream.requests) == 3
        upstream.play(chat())
        await asyncio.sleep(0.1)
        (await make(backend, make_call())).check_complete()
        assert backend.health().ready
        (await make(backend, make_call())).check_complete()


async def test_half_open_lets_one_call_through() -> None:
    async with (
        Upstream(refuse(500)) as upstream,
        routed(upstream.url, failures_to_eject=1, ejection_s=0.5) as backend,
    ):
        await make(backend, make_call())
        released = asyncio.Event()

        async def wait(peer: Peer) -> None:
            await released.wait()
            await answer()(peer)

        upstream.play(wait)
        await asyncio.sleep(0.5)
        probe = asyncio.create_task(make(backend, make_call()))
        await until(lambda: len(upstream.requests) == 2)
        assert backend.health().replicas == {upstream.url: "probing"}
        others = await asyncio.gather(*(make(backend, make_call()) for _ in range(10)))
        assert {type(outcome.error) for outcome in others} == {Unavailable}
        released.set()
        (await probe).check_complete()
        assert backend.health().ready


async def test_a_retry_does_not_join_the_probe_of_another_call() -> None:
    async def refuse_slowly(peer: Peer) -> None:
        await asyncio.sleep(0.05)
        await refuse(500)(peer)

    async with (
        Upstream(refuse_slowly) as one,
        Upstream(refuse_slowly) as two,
        routed(one.url, two.url, retries=1, failures_to_eject=1, ejection_s=0.3) as backend,
    ):
        await make(backend, make_call())
        assert set(backend.health().replicas.values()) == {"ejected"}
        await asyncio.sleep(0.35)
        outcomes = await asyncio.gather(*(make(backend, make_call()) for _ in range(2)))
        assert {type(outcome.error) for outcome in outcomes} == {BackendFailed}
        assert calls_of(one, two) == [2, 2]


async def test_a_cancelled_probe_is_released() -> None:
    async with (
        Upstream(refuse(500), hang(), chat()) as upstream,
        routed(upstream.url, failures_to_eject=1, ejection_s=0.05) as backend,
    ):
        await make(backend, make_call())
        await asyncio.sleep(0.05)
        probe = asyncio.create_task(make(backend, make_call()))
        await until(lambda: len(upstream.requests) == 2)
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        (await make(backend, make_call())).check_complete()


@pytest.mark.parametrize(
    "verb", [stream([sse(chunk("a"))]), stream([sse(chunk("a")), b"data: x\n\n"]), reset_after(1)]
)
async def test_answers_that_break_off_eject(verb: Verb) -> None:
    async with Upstream(verb) as upstream, routed(upstream.url, failures_to_eject=2) as backend:
        for _ in range(2):
            outcome = await make(backend, make_call(streamed=True))
            assert outcome.text().startswith(("a", "0"))
        assert backend.health().replicas == {upstream.url: "ejected"}


async def test_a_long_answer_that_meets_the_deadline_does_not_eject() -> None:
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.01)
    async with Upstream(verb) as upstream, routed(upstream.url, failures_to_eject=1) as backend:
        outcome = await make(backend, make_call(streamed=True), deadline_s=0.05)
        assert type(outcome.error) is DeadlineExceeded
        assert backend.health().ready


async def test_a_caller_that_leaves_does_not_eject() -> None:
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.01)
    async with Upstream(verb) as upstream, routed(upstream.url, failures_to_eject=1) as backend:
        deadline = asyncio.get_running_loop().time() + 5
        async with backend.open(make_call(streamed=True), deadline=deadline):
            pass
        task = asyncio.create_task(make(backend, make_call(streamed=True)))
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.health().ready


async def test_an_outage_costs_few_calls_and_ends_soon() -> None:
    """A service that fails for a while under steady traffic: hardly any call is wasted on it, and
    it is back within the longest ejection."""
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 2, refuse(503))
        urls = [server.url for server in servers]
        backend = await stack.enter_async_context(
            routed(*urls, retries=1, ejection_s=0.05, ejection_s_max=0.2)
        )
        outcomes = []
        for _ in range(200):
            outcomes.append(await make(backend, make_call()))
            await asyncio.sleep(0.003)
        made = sum(calls_of(*servers))
        assert made <= 1.1 * len(outcomes)
        assert made < 50
        assert all(not outcome.error.charged for outcome in outcomes if outcome.error)
        for server in servers:
            server.play(chat())
        healed_at = time.monotonic()
        while (await make(backend, make_call())).error is not None:
            assert time.monotonic() - healed_at < 2
            await asyncio.sleep(0.003)
