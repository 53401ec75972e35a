"""Tests that concurrent requests with the same key look it up only once."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import pytest

from tests.support.gateway import Gateway, Tenant
from tollkeeper.core.access import ProjectCaller
from tollkeeper.core.errors import Unauthenticated
from tollkeeper.core.runtime.clock import unix_now
from tollkeeper.database.database import Connection, Database, RoundTrips
from tollkeeper.tenants import authentication as authentication_module
from tollkeeper.tenants.authentication import Authentication
from tollkeeper.tenants.key_use import KeyUse
from tollkeeper.tenants.keys import key_digest


class CountedReads(Database):
    """Wraps the gateway's database. Counts the reads, and delays them until `may_go` is set."""

    def __init__(self, behind: Database) -> None:
        self._behind = behind
        self.reads = 0
        self.may_go = asyncio.Event()

    @asynccontextmanager
    async def autocommit(self, organization: Hashable | None = None) -> AsyncIterator[Connection]:
        self.reads += 1
        await self.may_go.wait()
        async with self._behind.autocommit(organization) as connection:
            yield connection

    @asynccontextmanager
    async def round_trips(self) -> AsyncIterator[RoundTrips]:
        self.reads += 1
        await self.may_go.wait()
        async with self._behind.round_trips() as trips:
            yield trips


@pytest.fixture
def database(gateway: Gateway) -> CountedReads:
    return CountedReads(gateway.services.database)


@pytest.fixture
def authentication(database: CountedReads) -> Authentication:
    return Authentication(database, KeyUse(), unix_now)


def _cached(authentication: Authentication, digest: bytes) -> tuple[ProjectCaller, bool]:
    key = authentication.cached(digest)
    assert key is not None
    return key.caller, key.is_fresh


async def test_requests_at_once_share_a_look_up(
    authentication: Authentication, database: CountedReads, tenant: Tenant
) -> None:
    """Otherwise every request that arrives during the lookup would take a connection. Under load, this
    would be thousands of connections whenever a cached key expires."""
    asked = [
        asyncio.create_task(authentication.authenticate_and_cache(tenant.project_key))
        for _ in range(50)
    ]
    await asyncio.sleep(0)
    database.may_go.set()
    callers = await asyncio.gather(*asked)
    assert {type(caller) for caller in callers} == {ProjectCaller}
    assert database.reads == 1
    assert _cached(authentication, key_digest(tenant.project_key)) == (callers[0], True)


async def test_a_key_that_is_not_valid_is_refused_for_each(
    authentication: Authentication, database: CountedReads, gateway: Gateway, tenant: Tenant
) -> None:
    other = await gateway.make_tenant()
    await gateway.services.projects.project_archive(other.organization_id, other.project_id)
    keys = [tenant.project_key, other.project_key, tenant.project_key, other.project_key]
    asked = [asyncio.create_task(authentication.authenticate_and_cache(key)) for key in keys]
    await asyncio.sleep(0)
    database.may_go.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in found] == [ProjectCaller, Unauthenticated] * 2
    # Each caller gets its own error object, because an error handler may add to it.
    assert found[1] is not found[3]
    # Concurrent requests with different keys share one lookup.
    assert database.reads == 1
    # A refusal is not cached.
    with pytest.raises(Unauthenticated, match="archived"):
        await authentication.authenticate_and_cache(other.project_key)
    assert database.reads == 2


async def test_who_leaves_does_not_take_the_look_up_along(
    authentication: Authentication, database: CountedReads, tenant: Tenant
) -> None:
    first, second = (
        asyncio.create_task(authentication.authenticate_and_cache(tenant.project_key))
        for _ in range(2)
    )
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    database.may_go.set()
    assert isinstance(await second, ProjectCaller)
    assert first.cancelled()
    assert database.reads == 1


async def test_a_call_is_refused_by_a_key_that_is_read_again_for_others(
    authentication: Authentication,
    database: CountedReads,
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.may_go.set()
    digest = key_digest(tenant.project_key)
    assert authentication.cached(digest) is None, "it has not been read yet"
    monkeypatch.setattr(authentication_module, "_CACHED_S", 0.0)
    caller = await authentication.authenticate_and_cache(tenant.project_key)
    assert _cached(authentication, digest) == (caller, False)
    assert database.reads == 1
    monkeypatch.setattr(authentication_module, "_STALE_S", 0.0)
    assert authentication.cached(digest) is None
    assert authentication.cached(key_digest("unknown")) is None


async def test_each_second_of_use_is_noted_once(
    authentication: Authentication, database: CountedReads, tenant: Tenant
) -> None:
    database.may_go.set()
    digest = key_digest(tenant.project_key)
    caller = await authentication.authenticate_and_cache(tenant.project_key)
    noted: list[int] = []
    authentication._key_use.note = lambda kind, caller, now: noted.append(now)  # type: ignore[method-assign]
    for now in (100, 100, 101, 101, 103):
        authentication._clock = lambda now=now: now  # type: ignore[misc]
        assert _cached(authentication, digest) == (caller, True)
    assert noted == [100, 101, 103]
