"""Defines the database of the telemetry tests, a collector, and gateways that export to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.databases import own_database
from tests.support.otlp_collector import Collector, running_collector
from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.support.upstream import Upstream, chat
from tollkeeper.setup.telemetry import CONTENT, ENDPOINT

# A function with the parameters `endpoint` (of a collector) and `content` (whether spans have it).
# The gateway exports everything before its context ends.
TracedGateway = Callable[..., AbstractAsyncContextManager[ScriptedGateway]]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a separate database, because the tests of this folder verify the whole ledger."""
    return own_database(shared_conninfo, "telemetry")


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with running_collector() as collector:
        yield collector


@pytest.fixture
def traced(data_dir: Path, conninfo: str, monkeypatch: pytest.MonkeyPatch) -> TracedGateway:
    @asynccontextmanager
    async def run(endpoint: str = "", *, content: bool = False) -> AsyncIterator[ScriptedGateway]:
        monkeypatch.setenv(ENDPOINT, endpoint)
        monkeypatch.setenv(CONTENT, str(content))
        async with (
            Upstream(chat()) as upstream,
            scripted_gateway(data_dir, conninfo, upstream) as running,
        ):
            yield await running.with_tenant()

    return run
