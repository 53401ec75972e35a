"""Tests that the tables can be distributed by organization: each statement, key and reference
stays within one organization. `docs/scaling.md` lists the same rules in a table.
"""

import asyncio
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from tests.support.databases import own_database
from tests.support.distribution import ACROSS, KEY, untied
from tests.support.ledger import (
    Process,
    balance_of,
    differences,
    held,
    make_tenant,
    release,
    running_process,
    settlement,
)
from tests.support.statements import all_statements
from tests.support.tables import each

# Rows of these tables belong to no organization. Each server has its own; operators add them up.
_OF_NO_TENANT = {
    "alembic_version": "the schema's revision",
    "schema_revisions": "which code works with the schema",
    "processes": "leases of processes, which hold on every server",
    "server_fence": "the newest server that processes have seen",
    "replica_reports": "what processes see of their replicas",
    "ledger_closes": "closed months: each server closes its own",
    "ledger_close_steps": "what was done with them",
    "ledger_verification": "when the server's ledger was verified",
    "traffic_latency": "latencies by backend",
    "observed_excesses": "models that exceed their holds, for every organization",
    "alerts": "what is raised now",
    "alert_observations": "what processes have seen",
    "alert_deliveries": "what is still to be delivered",
    "ended_console_sessions": "operators who signed out of consoles of older code",
    "console_sessions": "people who are signed in to the console",
    "payments": "what the payment provider reports, which may name no organization",
    "payment_withdrawals": "refunds and disputes of payments",
    "payment_events": "the events of the payment provider",
}
# Statements that name no organization, with the reason why they do not have to.
_KEY_LOOKUP = (
    "a presented key names no organization: the directory of keys says which server has it"
)
_BY_ID = "an operator names a thing by its id alone: every server is asked, or the directory of ids"
_ALL = (
    "an operator's sum or list over all organizations: every server is asked, and they are added up"
)
_MONTHS = "months are closed, exported and dropped on each server by itself"
_VERIFY = "each server verifies its own ledger, in slices of organizations"
_UPKEEP = "a chore that every server does for itself"
_OPERATORS = {
    "tenants.project_keys_store._FIND_BY_DIGESTS": _KEY_LOOKUP,
    "tenants.admin_keys_store._FIND_BY_DIGESTS": _KEY_LOOKUP,
    "reports.activity.store.find": _BY_ID,
    "tenants.admin_keys_store.find_anywhere": _BY_ID,
    "money.holds.statements.write_trial": "a hold of nothing that is rolled back, for readiness",
    "tenants.names_store.find": _BY_ID,
    "tenants.names_store.find_in_use": _BY_ID,
    "tenants.names_store.find_names": _BY_ID,
    "tenants.names_store.rename": _BY_ID,
    "tenants.names_store.find_policies": _BY_ID,
    "policies.store.find_organization": _BY_ID,
    "tenants.project_keys_store.find_anywhere": _BY_ID,
    "tenants.projects_store.find_anywhere": _BY_ID,
    "money.settlement.reservations.find": _BY_ID,
    "money.credit.store.read_totals": _ALL,
    "reports.activity.store.find_newest": _ALL,
    "reports.alerts.store.find_fills": _ALL,
    "reports.alerts.store.find_negative": _ALL,
    "reports.alerts.store.find_stopped": _ALL,
    "tenants.audit.store.find_page": _ALL,
    "reports.bills.store.compare_bill": _ALL,
    "reports.bills.store.find_backends": _ALL,
    "money.caps.counts.note_dropped": _MONTHS,
    "policies.calibration.drift_store.find_all": _ALL,
    "money.credit.store.find_all_balances": _ALL,
    "money.credit.store.find_totals": _ALL,
    "money.verification.store.verification_is_due": _VERIFY,
    "tenants.organizations_store.find_all": _ALL,
    "money.settlement.reservations.find_unsettled": _ALL,
    "reports.sums.read": _ALL,
    "money.unsettled.store.find_page": _ALL,
    "money.unsettled.store.total_by_reason": _ALL,
    "money.months.close_proof.find_close_differences": _MONTHS,
    "money.months.export.stream_csv": _MONTHS,
    "money.months.store.count_unresolved": _MONTHS,
    "money.months.store.drop_month": _MONTHS,
    "money.months.store.find_unfolded": _MONTHS,
    "money.months.store.find_unresolved": _MONTHS,
    "money.months.store.stream_close_rows": _MONTHS,
    "money.months.store.write_close": _MONTHS,
    "money.months.store.write_totals": _MONTHS,
    "money.verification.store.count_organizations": _VERIFY,
    "money.verification.store.find_in_slice": _VERIFY,
    "money.verification.store.find_organizations_end": _VERIFY,
    "tenants.idempotency_store.forget_secrets": _UPKEEP,
    "money.unsettled.open_holds_store.count_by_project": _UPKEEP,
    "money.unsettled.open_holds_store.find_created_between": _UPKEEP,
    "reports.rollups.delete_before": _UPKEEP,
}


@pytest.fixture(scope="module")
def distributed(conninfo: str) -> frozenset[str]:
    with psycopg.connect(conninfo) as connection:
        tables = {
            row[0]
            for row in connection.execute(
                """
                SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
                  AND relkind IN ('r', 'p') AND NOT relispartition
                """
            )
        }
    return frozenset(tables - set(_OF_NO_TENANT))


def test_every_statement_names_its_organizations_or_is_an_operators(
    distributed: frozenset[str],
) -> None:
    found: dict[str, set[str]] = {}
    for statement in all_statements():
        tables = untied(statement.text, distributed)
        if tables:
            found.setdefault(statement.name, set()).update(tables)
    assert {name: tables for name, tables in found.items() if name not in _OPERATORS} == {}
    assert set(_OPERATORS) - set(found) == set(), "these name their organizations by now"
    # Even an operator's statement joins only rows of the same organization.
    assert [name for name, tables in found.items() if ACROSS in tables] == []


@each(
    ("statement", "tables"),
    [
        ("SELECT 1 FROM accounts WHERE organization_id = %s", set()),
        ("SELECT 1 FROM accounts WHERE available = %s", {"accounts"}),
        ("SELECT 1 FROM accounts WHERE organization_id = %s OR available = 0", {"accounts"}),
        ("SELECT 1 FROM accounts WHERE organization_id > %s", {"accounts"}),
        (
            "SELECT 1 FROM projects p JOIN project_keys k ON k.id = p.id WHERE p.organization_id = %s",
            {"project_keys"},
        ),
        (
            (
                "SELECT 1 FROM projects p JOIN project_keys k USING (organization_id)"
                " WHERE p.organization_id = ANY (%s)"
            ),
            set(),
        ),
        (
            "SELECT 1 FROM projects p JOIN project_keys k ON k.id = p.id",
            {"projects", "project_keys", ACROSS},
        ),
        (
            (
                "SELECT 1 FROM organizations o WHERE o.id = %s AND NOT EXISTS"
                " (SELECT FROM accounts a WHERE a.available = 0)"
            ),
            {"accounts"},
        ),
        (
            "WITH gone AS (DELETE FROM unfolded WHERE day = %s RETURNING *) SELECT 1",
            {"unfolded"},
        ),
        (
            (
                "WITH all_of_it AS (SELECT * FROM unfolded)"
                " SELECT 1 FROM accounts a JOIN all_of_it u USING (organization_id)"
                " WHERE a.organization_id = %s"
            ),
            set(),
        ),
        (
            (
                "UPDATE accounts a SET held = v.held FROM unnest(%s::uuid[], %s::numeric[])"
                " AS v (organization_id, held) WHERE a.organization_id = v.organization_id"
            ),
            set(),
        ),
        ("INSERT INTO grants SELECT * FROM accounts", {"accounts"}),
    ],
)
def test_what_is_tied_and_what_is_not(
    distributed: frozenset[str], statement: str, tables: set[str]
) -> None:
    assert untied(statement, distributed) == tables


def test_every_table_is_of_tenants_or_listed(conninfo: str, distributed: frozenset[str]) -> None:
    with psycopg.connect(conninfo) as connection:
        keyed = {
            row[0]
            for row in connection.execute(
                """
                SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
                  AND NOT c.relispartition AND a.attname = %s
                """,
                (KEY,),
            )
        }
    assert distributed == keyed | {"organizations"}


def test_unique_keys_and_references_contain_the_organization(
    conninfo: str, distributed: frozenset[str]
) -> None:
    with psycopg.connect(conninfo) as connection:
        unique = connection.execute(
            """
            SELECT c.relname, array_agg(a.attname::text ORDER BY k.position)
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (number, position)
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
            WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
            GROUP BY c.relname, i.indexrelid
            """
        ).fetchall()
        references = connection.execute(
            """
            SELECT c.conrelid::regclass::text, c.confrelid::regclass::text,
                array_agg(a.attname || ' = ' || f.attname)
            FROM pg_constraint c
            CROSS JOIN LATERAL unnest(c.conkey, c.confkey) AS k (own, other)
            JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.own
            JOIN pg_attribute f ON f.attrelid = c.confrelid AND f.attnum = k.other
            WHERE c.contype = 'f' AND c.connamespace = 'public'::regnamespace
            GROUP BY c.oid
            """
        ).fetchall()
    own = {"organizations": "id"}
    keys = [(table, columns) for table, columns in unique if table in distributed]
    assert keys
    assert [key for key in keys if own.get(key[0], KEY) not in key[1]] == []
    by_key = {f"{KEY} = {KEY}", f"{KEY} = id"}
    across = [one for one in references if one[0] in distributed and not by_key & set(one[2])]
    assert across == []


async def _use(process: Process, organizations: set[UUID]) -> int:
    """Makes calls of three new organizations and adds their ids to `organizations`. Returns the total cost."""
    tenants = [await make_tenant(process.database, credit=1000) for _ in range(3)]
    organizations |= {tenant.organization_id for tenant in tenants}
    spent = 0
    for number, tenant in enumerate(tenants):
        holds = await asyncio.gather(*(held(process, tenant, 10) for _ in range(6)))
        await asyncio.gather(
            *(process.ledger.resolve(settlement(hold, 3 + number), hold) for hold in holds[:4])
        )
        await process.ledger.resolve(release(holds[4]), holds[4])
        await process.ledger.mark_unsettled(holds[5], "nobody knows")
        spent += 4 * (3 + number)
        found = await balance_of(process, tenant)
        assert (found.settled, found.unsettled) == (4 * (3 + number), 10)
    return spent


async def test_two_servers_with_half_of_the_organizations_each(
    shared_conninfo: str, tmp_path: Path
) -> None:
    """Runs the same code on two databases: each has complete books, and no rows of the other."""
    name = tmp_path.name.replace("-", "_")
    conninfos = [own_database(shared_conninfo, f"shard_{number}_{name}") for number in range(2)]
    owned: list[set[UUID]] = [set(), set()]
    async with running_process(conninfos[0]) as one, running_process(conninfos[1]) as two:
        spent = await asyncio.gather(_use(one, owned[0]), _use(two, owned[1]))
        for process, mine, cost in zip((one, two), owned, spent, strict=True):
            assert await differences(process.database) == []
            async with process.database.autocommit() as connection:
                cursor = await connection.execute("SELECT organization_id, settled FROM accounts")
                rows = await cursor.fetchall()
            assert {row[0] for row in rows} == mine
            assert sum(row[1] for row in rows) == cost
    assert not owned[0] & owned[1]
