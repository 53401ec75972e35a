"""Tests the replica reports of a backend: state and last failure of each replica, its calls and connections."""

import asyncio
from contextlib import AsyncExitStack

from tests.support.backend_calls import make, make_call, routed, until
from tests.support.upstream import Upstream, chat, hang, unused_url
from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.port import ReplicaReport
from tollkeeper.providers.routing import RoutedBackend


def _reports(backend: RoutedBackend) -> dict[str, ReplicaReport]:
    return {report.url: report for report in backend.health().reports}


def _counts(backend: RoutedBackend, url: str) -> tuple[int, int, int]:
    report = _reports(backend)[url]
    return report.calls, report.connections, report.waiting


async def test_an_ejected_replica_says_until_when_and_why() -> None:
    async with AsyncExitStack() as stack:
        alive = await stack.enter_async_context(Upstream(chat()))
        dead = unused_url()
        backend = await stack.enter_async_context(routed(alive.url, dead, ejection_s=30))
        fresh = _reports(backend)
        assert all(report.state == "healthy" for report in fresh.values())
        for _ in range(100):
            if _reports(backend)[dead].state == "ejected":
                break
            await make(backend, make_call())
        report = _reports(backend)[dead]
        assert report.state == "ejected"
        assert report.retry_in_s is not None
        assert 0 < report.retry_in_s <= 30
        assert report.last_failure == "The backend cannot be reached."
        assert _reports(backend)[alive.url] == ReplicaReport(
            backend.name, alive.url, "healthy", connections=1
        )


async def test_a_single_replica_that_fails_is_down_until_it_answers() -> None:
    dead = unused_url()
    async with routed(dead) as backend:
        for _ in range(5):
            assert isinstance((await make(backend, make_call())).error, BackendFailed)
        report = _reports(backend)[dead]
        health = backend.health()
    assert (health.ready, health.detail) == (False, "0 of 1 replicas healthy")
    assert (report.state, report.retry_in_s) == ("failing", None)
    assert report.last_failure == "The backend cannot be reached."


async def test_calls_connections_and_waiting_calls_are_counted() -> None:
    async with (
        Upstream(hang()) as upstream,
        routed(upstream.url, connections_max=2, connections_waiting_max=8) as backend,
    ):
        tasks = [asyncio.create_task(make(backend, make_call())) for _ in range(3)]
        await until(lambda: _counts(backend, upstream.url) == (3, 2, 1))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert _counts(backend, upstream.url)[::2] == (0, 0)
