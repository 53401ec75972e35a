"""Tests which replica gets a call, when another replica may try, and when no replica is left."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from tests.providers.replicas import calls_of, upstreams
from tests.support.backend_calls import Outcome, make, make_call, routed, until
from tests.support.tables import each
from tests.support.upstream import (
    Peer,
    Upstream,
    Verb,
    answer,
    chat,
    hang,
    refuse,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    unused_url,
)
from tollkeeper.core.errors import BackendFailed, DeadlineExceeded, ProviderRejected, RateLimited
from tollkeeper.providers.routing import RoutedBackend

# Tests of affinity.


async def test_a_session_stays_with_its_replica_on_every_process() -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 4, chat())
        urls = [server.url for server in servers]
        one = await stack.enter_async_context(routed(*urls))
        # This stands for another process whose settings list the URLs in another order.
        two = await stack.enter_async_context(routed(*reversed(urls)))
        chosen = set()
        for number in range(64):
            key = number.to_bytes(32, "big")
            replicas = {
                (await make(backend, make_call(affinity=key))).replica
                for backend in (one, two, one)
            }
            assert len(replicas) == 1
            chosen |= replicas
        assert chosen == set(urls)


async def test_only_the_sessions_of_a_lost_replica_move() -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 3, chat())
        urls = [server.url for server in servers]
        keys = [number.to_bytes(32, "big") for number in range(30)]
        all_up = await stack.enter_async_context(routed(*urls))
        one_down = await stack.enter_async_context(routed(*urls[:2], unused_url()))
        for key in keys:
            before = (await make(all_up, make_call(affinity=key))).replica
            after = (await make(one_down, make_call(affinity=key))).replica
            assert after in urls[:2]
            assert before in (after, urls[2])


async def held_calls(
    stack: AsyncExitStack, backend: RoutedBackend, affinity: bytes | None, count: int
) -> list[asyncio.Task[Outcome]]:
    """Starts calls that are in flight until the end of `stack` cancels them. Returns their tasks."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(make(backend, make_call(affinity=affinity))))
        await asyncio.sleep(0)

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    stack.push_async_callback(stop)
    return tasks


async def test_a_session_leaves_a_replica_that_has_far_more_than_its_share() -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 2, hang())
        backend = await stack.enter_async_context(routed(*(server.url for server in servers)))
        await held_calls(stack, backend, b"a" * 32, 40)
        await until(lambda: sum(calls_of(*servers)) == 40)
        fewer, more = sorted(calls_of(*servers))
        # The limit is 1.25 times the mean (20) plus the slack (4): 29 of 40 calls.
        assert more <= 1.25 * 20 + 5
        assert fewer > 0


async def test_few_calls_of_a_session_stay_together() -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 2, hang())
        backend = await stack.enter_async_context(routed(*(server.url for server in servers)))
        await held_calls(stack, backend, b"a" * 32, 4)
        await until(lambda: sum(calls_of(*servers)) == 4)
        assert sorted(calls_of(*servers)) == [0, 4]


@each("verb", [chat(), refuse(400), refuse(429), reset_before_headers()])
async def test_calls_that_have_ended_are_no_load(verb: Verb) -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 2, verb)
        backend = await stack.enter_async_context(
            routed(*(server.url for server in servers), failures_to_eject=1000, retries=0)
        )
        for _ in range(60):
            await make(backend, make_call(affinity=b"a" * 32))
        assert sorted(calls_of(*servers)) == [0, 60]


async def test_without_affinity_the_least_busy_replica_is_taken() -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 3, hang())
        backend = await stack.enter_async_context(routed(*(server.url for server in servers)))
        await held_calls(stack, backend, None, 30)
        await until(lambda: calls_of(*servers) == [10, 10, 10])


async def test_ties_are_broken_by_chance() -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 2, chat())
        urls = [server.url for server in servers]
        backend = await stack.enter_async_context(routed(*urls))
        taken = Counter([(await make(backend, make_call())).replica for _ in range(40)])
        assert set(taken) == set(urls)


# Tests of retries.


async def refuse_in_the_answer(peer: Peer) -> None:
    """Sends the status 200, and then an error object in place of the answer."""
    error = {"error": {"message": "busy", "code": 503}}
    await (stream([sse(error)]) if peer.request.json["stream"] else answer(error))(peer)


@each("streamed", [False, True])
@each(
    "verb",
    [
        refuse(500),
        refuse(503),
        refuse(401),
        refuse(429),
        refuse(529),
        refuse_in_the_answer,
    ],
)
async def test_another_replica_answers(verb: Verb, streamed: bool) -> None:
    async with (
        Upstream(verb) as bad,
        Upstream(chat()) as good,
        routed(bad.url, good.url, unused_url(), retries=2, failures_to_eject=1000) as backend,
    ):
        calls = 0
        # Which replica is tried first is random.
        while calls < 12 or not bad.requests:
            calls += 1
            assert calls < 200
            outcome = await make(backend, make_call(streamed=streamed))
            outcome.check_complete()
            assert outcome.replica == good.url


@each("streamed", [False, True])
@each(
    "verb",
    [
        reset_before_headers(),
        reset_after(content_type="text/event-stream"),
        reset_after(content_type="application/json"),
        answer(b"<html>", content_type="text/html"),
        *(refuse(status) for status in (408, 499, 502, 504, 524)),
    ],
)
async def test_what_may_have_been_charged_is_not_repeated(verb: Verb, streamed: bool) -> None:
    async with (
        Upstream(verb) as one,
        Upstream(verb) as two,
        routed(one.url, two.url, retries=3) as backend,
    ):
        outcome = await make(backend, make_call(streamed=streamed))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert sum(calls_of(one, two)) == 1


async def test_what_had_begun_is_not_repeated() -> None:
    async with (
        Upstream(reset_after(2)) as one,
        Upstream(reset_after(2)) as two,
        routed(one.url, two.url, retries=3) as backend,
    ):
        outcome = await make(backend, make_call(streamed=True))
        assert type(outcome.error) is BackendFailed
        assert outcome.text() == "0 1 "
        assert sum(calls_of(one, two)) == 1


async def test_a_rejection_is_not_repeated_and_does_not_eject() -> None:
    async with (
        Upstream(refuse(400, "bad")) as one,
        Upstream(refuse(400, "bad")) as two,
        routed(one.url, two.url, retries=3, failures_to_eject=1) as backend,
    ):
        for number in range(1, 6):
            outcome = await make(backend, make_call())
            assert type(outcome.error) is ProviderRejected
            assert sum(calls_of(one, two)) == number
        assert set(backend.health().replicas.values()) == {"healthy"}


async def test_busy_replicas_are_not_ejected() -> None:
    busy = refuse(429, headers=[("retry-after", "7")])
    async with (
        Upstream(busy) as one,
        Upstream(busy) as two,
        routed(one.url, two.url, retries=1, failures_to_eject=1) as backend,
    ):
        for number in range(1, 4):
            outcome = await make(backend, make_call())
            assert type(outcome.error) is RateLimited
            assert outcome.error.retry_after_s == 7
            assert calls_of(one, two) == [number, number]


@each("retries", [0, 1, 2])
async def test_no_more_retries_than_configured(retries: int) -> None:
    async with AsyncExitStack() as stack:
        servers = await upstreams(stack, 4, refuse(500))
        urls = [server.url for server in servers]
        backend = await stack.enter_async_context(routed(*urls, retries=retries))
        outcome = await make(backend, make_call())
        assert type(outcome.error) is BackendFailed
        assert sum(calls_of(*servers)) == retries + 1
        assert max(calls_of(*servers)) == 1


async def test_no_retry_after_the_deadline() -> None:
    async def late(peer: Peer) -> None:
        await peer.send_head()
        await peer.until_left()

    async with (
        Upstream(late) as one,
        Upstream(late) as two,
        routed(one.url, two.url, retries=1, failures_to_eject=1) as backend,
    ):
        outcome = await make(backend, make_call(streamed=True), deadline_s=0.05)
        assert type(outcome.error) is DeadlineExceeded
        assert sum(calls_of(one, two)) == 1
        # The other replica was not tried. The client's deadline is no failure of a replica.
        assert sorted(backend.health().replicas.values()) == ["healthy", "healthy"]
