"""Tests changes of caps by operators, with rotated keys, the audit and the verification."""

from dataclasses import replace
from uuid import uuid4

import pytest

from tests.support.capped_books import DAY, MONTH, WEEK, CappedBooks
from tests.support.ledger import another_project, make_tenant, rows, run
from tollkeeper.core.access import KeyId, OrganizationId
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.database.watched_connection import WatchedConnection
from tollkeeper.money.caps import counts as cap_counts
from tollkeeper.money.holds.rule import Refusal
from tollkeeper.tenants.idempotency import Idempotency
from tollkeeper.tenants.project_keys import ProjectKeys


async def _rotate(world: CappedBooks, key_id: KeyId) -> KeyId:
    def now() -> int:
        return int(world.clock.now.timestamp())

    idempotency = Idempotency(Vault(b"0" * 32), now)
    keys = ProjectKeys(world.process.database, idempotency, now, ("inference:write",))
    return (await keys.project_key_rotate(key_id, grace_s=3600)).new.id


async def test_a_rotated_key_goes_on_with_the_cap_and_what_was_spent(world: CappedBooks) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    running = await world.hold(4)
    await world.settle(await world.hold(3), 3)
    second = replace(world.tenant, key_id=await _rotate(world, world.tenant.key_id))
    third = replace(world.tenant, key_id=await _rotate(world, second.key_id))
    for tenant in (world.tenant, second, third):
        assert await world.refusal(4, tenant) is Refusal.KEY_CAP
    # The old keys still work, and all three keys share one cap.
    await world.hold(1, second)
    await world.hold(2, third)
    assert await world.refusal(1) is Refusal.KEY_CAP
    await world.settle(running, 1)
    assert await world.uses() == [(3, 4, 3)]
    [use] = await world.caps.cap_show(world.tenant.organization_id)
    assert use.key_id == third.key_id
    # Each of the keys identifies the same cap. A new cap also counts the calls of all three keys.
    await world.set(12, DAY, key=second.key_id)
    assert await world.uses() == [(3, 4, 5)]
    assert (await world.set(20, WEEK, key=third.key_id)).remaining_picousd == 13
    await world.check()
    await world.caps.cap_clear(world.tenant.organization_id, key_id=world.tenant.key_id)
    assert await world.uses() == []


async def test_a_count_of_large_books_may_take_longer_than_other_statements(
    world: CappedBooks,
) -> None:
    """The server's statement timeout is longer, and the gateway does not close the connection earlier."""
    async with world.process.database.transaction() as connection:
        await cap_counts.recount(connection, world.tenant.organization_id)
        cursor = await connection.execute("SHOW statement_timeout")
        assert await cursor.fetchone() == ("1min",)
        assert isinstance(connection, WatchedConnection)
        assert connection.allows_long_statements


async def test_changes_are_in_the_audit_list(world: CappedBooks) -> None:
    organization, key = world.tenant.organization_id, world.tenant.key_id
    await world.set(5, DAY, key=key)
    await world.set(5, DAY, key=key)
    await world.set(6, DAY, key=key)
    await world.set(7, WEEK)
    await world.caps.cap_clear(organization, key_id=key)
    found = await rows(
        world.process.database,
        """
        SELECT operation, object_id, before, after FROM audit WHERE organization_id = %s
        ORDER BY id
        """,
        organization,
    )
    five, six, seven = (
        {"amount": f"0.00000000000{amount}", "period": period}
        for amount, period in ((5, "day"), (6, "day"), (7, "week"))
    )
    assert found == [
        ("cap_set", str(key), None, five),
        ("cap_set", str(key), five, six),
        ("cap_set", str(organization), None, seven),
        ("cap_clear", str(key), six, None),
    ]


async def test_unknown_and_foreign_keys_are_not_found(world: CappedBooks) -> None:
    stranger = await make_tenant(world.process.database)
    for key in (KeyId(uuid4()), stranger.key_id):
        with pytest.raises(NotFound):
            await world.set(1, DAY, key=key)
        with pytest.raises(NotFound):
            await world.caps.cap_clear(world.tenant.organization_id, key_id=key)
        with pytest.raises(NotFound):
            await world.caps.cap_show_of_key(world.tenant.organization_id, key)
    other = await another_project(world.process.database, world.tenant)
    with pytest.raises(NotFound):
        await world.set(1, DAY, project=other.project_id, key=world.tenant.key_id)
    with pytest.raises(NotFound):
        await world.caps.cap_set(OrganizationId(uuid4()), 1, DAY)


async def test_what_is_no_cap_is_refused(world: CappedBooks) -> None:
    with pytest.raises(InvalidRequest) as negative:
        await world.set(-1, DAY)
    assert negative.value.param == "amount"


async def test_the_caps_of_one_key(world: CappedBooks) -> None:
    other = await another_project(world.process.database, world.tenant)
    await world.set(1, DAY)
    await world.set(2, WEEK, project=world.tenant.project_id)
    await world.set(3, MONTH, key=world.tenant.key_id)
    await world.set(4, DAY, project=other.project_id)
    await world.set(5, DAY, key=other.key_id)
    found = await world.caps.cap_show_of_key(world.tenant.organization_id, world.tenant.key_id)
    assert [use.cap.amount_picousd for use in found] == [3]


BROKEN = [
    "UPDATE cap_counters SET held = held + 1 WHERE organization_id = %s",
    "UPDATE cap_counters SET settled = settled + 1 WHERE organization_id = %s",
    "UPDATE cap_counters SET number = number + 1 WHERE organization_id = %s",
    "DELETE FROM cap_counters WHERE organization_id = %s",
    "UPDATE caps SET amount = 1 WHERE organization_id = %s",
    "UPDATE accounts SET is_capped = false WHERE organization_id = %s",
]


@pytest.mark.parametrize("statement", BROKEN)
async def test_verify_finds_counts_that_differ(world: CappedBooks, statement: str) -> None:
    await world.set(10, DAY, key=world.tenant.key_id)
    await world.settle(await world.hold(6), 2)
    await world.hold(3)
    await world.check()
    await run(world.process.database, statement, world.tenant.organization_id)
    found = await world.differences()
    assert {subject for _, subject, _ in found} == {str(world.tenant.key_id)}
    # Restore the rows for the tests after this one.
    await world.caps.cap_clear(world.tenant.organization_id, key_id=world.tenant.key_id)
    await world.check()
