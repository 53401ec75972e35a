"""Tests the migration of a ledger without ledger months: rows stay, and open calls can be resolved."""

import secrets
from uuid import UUID, uuid4

import pytest

from tests.support.databases import database_at
from tests.support.large_books import fill_books
from tests.support.ledger import (
    Process,
    count,
    differences,
    make_database,
    make_tenant,
    rows,
    run,
    running_process,
)
from tests.support.ledger_months import this_month
from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.ledger import Mark, Resolution, ResolutionKind
from tollkeeper.storage.migrations import migrate

_BEFORE_MONTHS = "0007"


@pytest.fixture
def old_schema(shared_conninfo: str) -> str:
    """Creates a database with the last schema that had no ledger months."""
    return database_at(shared_conninfo, f"before_months_{secrets.token_hex(4)}", _BEFORE_MONTHS)


async def _hold_of_before(process: Process, organization: UUID, project: UUID, key: UUID) -> UUID:
    """Creates a hold with a random id, as code of the old schema did, and returns the id."""
    identity = uuid4()
    await run(
        process.database,
        """
        INSERT INTO reservations (organization_id, id, project_id, api_key_id, process_id, model,
            hold, price_prompt, price_completion, price_image, price_request, price_cache_read,
            prompt_tokens_max, choices, output_tokens_max, images, month, held_at)
        VALUES (%s, %s, %s, %s, gen_random_uuid(), 'm', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 202601, now())
        """,
        organization,
        identity,
        project,
        key,
    )
    await run(
        process.database,
        "UPDATE project_accounts SET live_holds = live_holds + 1 WHERE project_id = %s",
        project,
    )
    return identity


async def test_books_of_before_months_go_on(old_schema: str) -> None:
    month = this_month()
    database = make_database(old_schema)
    await database.open()
    # The first ids lie in the current month; the others lie in months that get no partition.
    await fill_books(database, calls=300, organizations=3, months=(month,))
    await fill_books(database, calls=300, organizations=3, months=(month.plus(-30), month.plus(99)))
    tenant = await make_tenant(database, credit=100)
    await database.close()
    async with running_process(old_schema) as before:
        ids = [
            await _hold_of_before(before, tenant.organization_id, tenant.project_id, tenant.key_id)
            for _ in range(2)
        ]
    migrate(old_schema)
    async with running_process(old_schema) as process:
        counted = await rows(
            process.database,
            """
            SELECT r.tableoid::regclass::text, d.tableoid::regclass::text, count(*)
            FROM reservations r
            JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
            GROUP BY 1, 2 ORDER BY 1
            """,
        )
        this = f"_{month.number}"
        assert counted == [
            (f"reservations{this}", f"resolutions{this}", 300),
            ("reservations_default", "resolutions_default", 300),
        ]
        assert await count(process.database, "SELECT count(*) FROM overages") > 0
        organization = OrganizationId(tenant.organization_id)
        resolution = Resolution(organization, ids[0], ResolutionKind.SETTLED, "test", prompt=3)
        assert await process.store.resolve_all([resolution, resolution]) == [
            "done",
            "already_ended",
        ]
        assert await process.store.mark_all([Mark(organization, ids[1], "nobody knows")]) == [
            "done"
        ]
        stale = [
            found for found in await differences(process.database) if "outlives" not in found[0]
        ]
        assert stale == []
