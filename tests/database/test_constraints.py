"""Tests that the database itself refuses wrong states, whatever the code does."""

from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors as pg

from tests.support.ledger import Process, held, make_tenant, rows, run, settlement
from tests.support.tables import each
from tollkeeper.money.holds.values import Hold

# Statements that would cause a wrong state, each with the error that the database raises.
FORBIDDEN: dict[str, tuple[LiteralString, type[psycopg.Error]]] = {
    "a second resolution": (
        """
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            prompt, completion, input_cache_read, image, request, other, estimated, resolved_by,
            day, resolved_at)
        SELECT organization_id, reservation_id, 'released', hold, 0, hold, 0, 0, 0, 0, 0, 0, false,
            'twice', day, resolved_at FROM resolutions WHERE reservation_id = %(settled)s
        """,
        pg.UniqueViolation,
    ),
    "more settled than held": (
        """
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            prompt, completion, input_cache_read, image, request, other, estimated, resolved_by,
            day, resolved_at)
        SELECT organization_id, id, 'settled', hold, hold + 1, -1, hold + 1, 0, 0, 0, 0, 0, false,
            'test', 1, now() FROM reservations WHERE id = %(held)s
        """,
        pg.CheckViolation,
    ),
    "a cost that is not the sum of its lines": (
        """
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            prompt, completion, input_cache_read, image, request, other, estimated, resolved_by,
            day, resolved_at)
        SELECT organization_id, id, 'settled', hold, 3, hold - 3, 1, 1, 0, 0, 0, 0, false, 'test',
            1, now() FROM reservations WHERE id = %(held)s
        """,
        pg.CheckViolation,
    ),
    "a negative cost": (
        """
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            prompt, completion, input_cache_read, image, request, other, estimated, resolved_by,
            day, resolved_at)
        SELECT organization_id, id, 'settled', hold, 0, hold, 5, -5, 0, 0, 0, 0, false, 'test', 1,
            now() FROM reservations WHERE id = %(held)s
        """,
        pg.CheckViolation,
    ),
    "a release that costs": (
        """
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            prompt, completion, input_cache_read, image, request, other, estimated, resolved_by,
            day, resolved_at)
        SELECT organization_id, id, 'released', hold, 3, hold - 3, 3, 0, 0, 0, 0, 0, false, 'test',
            1, now() FROM reservations WHERE id = %(held)s
        """,
        pg.CheckViolation,
    ),
    "a resolution of nothing": (
        """
        INSERT INTO resolutions (organization_id, reservation_id, kind, hold, settled, released,
            prompt, completion, input_cache_read, image, request, other, estimated, resolved_by,
            day, resolved_at)
        SELECT organization_id, gen_random_uuid(), 'released', hold, 0, hold, 0, 0, 0, 0, 0, 0,
            false, 'test', 1, now() FROM reservations WHERE id = %(held)s
        """,
        pg.ForeignKeyViolation,
    ),
    "a second mark": (
        """
        INSERT INTO unsettled_marks (organization_id, reservation_id, reason)
        SELECT organization_id, id, 'test' FROM reservations, (VALUES (1), (2)) AS twice
        WHERE id = %(held)s
        """,
        pg.UniqueViolation,
    ),
    "money given back twice": (
        """
        INSERT INTO unfolded SELECT u.* FROM unfolded u, (VALUES (1)) AS again
        WHERE reservation_id = %(settled)s
        """,
        pg.UniqueViolation,
    ),
    "an overage without a resolution": (
        """
        INSERT INTO overages (organization_id, reservation_id, amount)
        SELECT organization_id, id, 1 FROM reservations WHERE id = %(held)s
        """,
        pg.ForeignKeyViolation,
    ),
    "an overage of nothing": (
        """
        INSERT INTO overages (organization_id, reservation_id, amount)
        SELECT organization_id, id, 0 FROM reservations WHERE id = %(settled)s
        """,
        pg.CheckViolation,
    ),
    "credit from nowhere": (
        "UPDATE accounts SET available = available + 1 WHERE organization_id = %(organization)s",
        pg.CheckViolation,
    ),
    "an overdraft without overage": (
        """
        UPDATE accounts SET held = held + available + 1, available = -1
        WHERE organization_id = %(organization)s
        """,
        pg.CheckViolation,
    ),
    "a negative hold": (
        "UPDATE project_accounts SET held = -1 WHERE organization_id = %(organization)s",
        pg.CheckViolation,
    ),
    "a negative hold of an account": (
        """
        UPDATE accounts SET held = -1, available = available + held + 1
        WHERE organization_id = %(organization)s
        """,
        pg.CheckViolation,
    ),
    "a negative cap": (
        """
        INSERT INTO caps (organization_id, subject_id, scope, period, amount)
        VALUES (%(organization)s, %(organization)s, 'organization', 'month', -1)
        """,
        pg.CheckViolation,
    ),
    "more live holds ended than begun": (
        "UPDATE project_accounts SET live_holds = -1 WHERE organization_id = %(organization)s",
        pg.CheckViolation,
    ),
    "a hold that is not the price times the bounds": (
        """
        INSERT INTO reservations SELECT (r).* FROM (
            SELECT jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(),
                'hold', r.hold + 1)) AS r FROM reservations r WHERE r.id = %(held)s) AS changed
        """,
        pg.CheckViolation,
    ),
    "the same hold twice": (
        "INSERT INTO reservations SELECT * FROM reservations WHERE id = %(held)s",
        pg.UniqueViolation,
    ),
}


async def world(process: Process) -> tuple[Hold, Hold]:
    """Creates and returns an open hold and a settled hold of a new tenant."""
    tenant = await make_tenant(process.database, credit=100)
    open_hold, settled = [await held(process, tenant, 10) for _ in range(2)]
    await process.ledger.resolve(settlement(settled, 4))
    return open_hold, settled


@each("wrong", FORBIDDEN)
async def test_the_database_refuses(process: Process, wrong: str) -> None:
    open_hold, settled = await world(process)
    query, error = FORBIDDEN[wrong]
    values = {
        "organization": open_hold.organization_id,
        "held": open_hold.id,
        "settled": settled.id,
    }
    with pytest.raises(error):
        async with process.database.autocommit() as connection:
            await connection.execute(query, values)


async def test_amounts_are_wide_and_whole(process: Process) -> None:
    """Every money column can store a trillion dollars, and stores integers only."""
    columns = await rows(
        process.database,
        """
        SELECT table_name || '.' || column_name, data_type, numeric_precision, numeric_scale
        FROM information_schema.columns WHERE table_schema = 'public' AND data_type IN
            ('numeric', 'real', 'double precision', 'money')
        """,
    )
    assert len(columns) >= 30
    assert {tuple(found[1:]) for found in columns} == {("numeric", 38, 0)}
    tenant = await make_tenant(process.database, credit=10**30)
    hold = await held(process, tenant, 10**24)
    assert await process.ledger.resolve(settlement(hold, 10**24 + 1))
    [[amount]] = await rows(
        process.database, "SELECT amount FROM overages WHERE reservation_id = %s", hold.id
    )
    assert amount == 1


async def test_all_amounts_but_these_are_never_negative(process: Process) -> None:
    """The credit of an account may be overdrawn. The hold of a resolution is settled plus released. The
    overage in flight is a sum that other constraints do not depend on."""
    amounts = await rows(
        process.database,
        """
        SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relname IN ('accounts', 'project_accounts', 'resolutions', 'cap_counters')
          AND a.atttypid = 'picousd'::regtype
        """,
    )
    checked = await rows(
        process.database,
        """
        SELECT c.relname, a.attname FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (n.conkey)
        WHERE n.conname = c.relname || '_not_negative'
        """,
    )
    assert set(amounts) - set(checked) == {
        ("accounts", "granted"),
        ("accounts", "available"),
        ("accounts", "overage_in_flight"),
        ("resolutions", "hold"),
    }
    assert set(checked) <= set(amounts)


async def test_every_key_starts_with_the_organization(process: Process) -> None:
    """So the tables can be distributed by organization. The table `processes` has no organization."""
    keys = await rows(
        process.database,
        """
        SELECT conrelid::regclass::text, attname FROM pg_constraint
        JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1]
        WHERE contype = 'p' AND connamespace = 'public'::regnamespace
          AND conrelid::regclass::text IN ('accounts', 'project_accounts', 'grants',
            'reservations', 'unsettled_marks', 'resolutions', 'overages', 'unfolded', 'cost_rollup')
        """,
    )
    assert len(keys) == 9
    assert {column for _, column in keys} == {"organization_id"}


async def test_an_unknown_kind_is_refused(process: Process) -> None:
    with pytest.raises(pg.CheckViolation):
        await run(
            process.database,
            "INSERT INTO unfolded VALUES (%s, %s, 'lost', %s, %s, 0, 0, 0, 0)",
            uuid4(),
            uuid4(),
            uuid4(),
            uuid4(),
        )
