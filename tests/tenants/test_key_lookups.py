"""Tests that concurrent key lookups share one statement, and that each caller gets its own key."""

import asyncio

import pytest

from tests.support.activity_records import UnsteadyDatabase
from tests.support.gateway import Gateway
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.database import RoundTrips
from tollkeeper.tenants import admin_keys_store as admin_keys
from tollkeeper.tenants import project_keys_store as project_keys
from tollkeeper.tenants.admin_keys_store import AdminKeyWithDigest
from tollkeeper.tenants.authentication import Authentication
from tollkeeper.tenants.key_lookups import KeyLookups
from tollkeeper.tenants.key_use import KeyUse
from tollkeeper.tenants.keys import key_digest
from tollkeeper.tenants.project_keys_store import PresentedProjectKey


async def test_many_lookups_are_one_statement(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[bytes]] = []
    find = project_keys.find_by_digests

    async def counted(trips: RoundTrips, digests: list[bytes]) -> list[PresentedProjectKey]:
        asked.append(digests)
        return await find(trips, digests)

    monkeypatch.setattr(project_keys, "find_by_digests", counted)
    tenants = [await gateway.make_tenant() for _ in range(4)]
    lookups = KeyLookups(gateway.services.database, project_keys.find_by_digests)
    known = [key_digest(tenant.project_key) for tenant in tenants]
    wanted = [*known, key_digest("tkp_nobody"), *known, known[0]]
    found = await asyncio.gather(*(lookups.find(digest) for digest in wanted))
    owners = [None if key is None else key.organization_id for key in found]
    mine = [tenant.organization_id for tenant in tenants]
    assert owners == [*mine, None, *mine, mine[0]]
    assert [key.digest for key in found if key is not None] == [*known, *known, known[0]]
    assert [sorted(digests) for digests in asked] == [sorted({*wanted})]


async def test_a_change_is_seen_by_every_later_lookup(gateway: Gateway) -> None:
    tenant = await gateway.make_tenant()
    lookups = KeyLookups(gateway.services.database, project_keys.find_by_digests)
    before = await lookups.find(key_digest(tenant.project_key))
    assert before is not None
    assert not before.revoked
    running = [asyncio.ensure_future(lookups.find(before.digest)) for _ in range(50)]
    await gateway.services.project_keys.project_key_revoke(before.id)
    after = await lookups.find(before.digest)
    assert after is not None
    assert after.revoked
    await asyncio.gather(*running)


async def test_an_outage_reaches_everybody_and_passes(gateway: Gateway) -> None:
    tenant = await gateway.make_tenant()
    database = UnsteadyDatabase(gateway.services.database)
    lookups = KeyLookups(database, project_keys.find_by_digests)
    database.away = True
    digests = [key_digest(tenant.project_key), key_digest("tkp_nobody")]
    errors = await asyncio.gather(
        *(lookups.find(digest) for digest in digests), return_exceptions=True
    )
    assert all(isinstance(error, Unavailable) for error in errors), errors
    assert errors[0] is not errors[1]
    database.away = False
    assert await lookups.find(digests[0]) is not None


async def test_a_caller_that_leaves_does_not_disturb_the_others(gateway: Gateway) -> None:
    tenant = await gateway.make_tenant()
    lookups = KeyLookups(gateway.services.database, project_keys.find_by_digests)
    digest = key_digest(tenant.project_key)
    waiting = [asyncio.ensure_future(lookups.find(digest)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [key.digest for key in (found[0], found[2]) if isinstance(key, PresentedProjectKey)] == [
        digest,
        digest,
    ]


async def test_admin_keys_are_looked_up_together_too(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The organization of a key is unknown before the lookup, so lookups do not take turns by
    organization."""
    batches: list[int] = []
    find = admin_keys.find_by_digests

    async def counted(trips: RoundTrips, digests: list[bytes]) -> list[AdminKeyWithDigest]:
        batches.append(len(digests))
        return await find(trips, digests)

    monkeypatch.setattr(admin_keys, "find_by_digests", counted)
    tenants = [await gateway.make_tenant() for _ in range(3)]
    services = gateway.services
    authentication = Authentication(services.database, KeyUse(), services.clock)
    callers = await asyncio.gather(
        *(authentication.authenticate(tenant.admin_key) for tenant in tenants)
    )
    assert [caller.organization_id for caller in callers] == [
        tenant.organization_id for tenant in tenants
    ]
    assert batches == [3]
