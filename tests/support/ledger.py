"""Provides processes, tenants, holds and balances for tests of the ledger on a real PostgreSQL."""

import atexit
import dataclasses
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
from msgspec.structs import replace

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.pricing import Bounds, Pricing, hold_picousd
from tollkeeper.core.runtime.request_ids import new_request_id
from tollkeeper.database import processes
from tollkeeper.database.account_locks import lock_account_rows
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.holds.rule import Decision, DefaultLimits
from tollkeeper.money.holds.store import LedgerStore
from tollkeeper.money.holds.values import Hold, Resolution, ResolutionKind
from tollkeeper.money.overage.service import Excesses
from tollkeeper.money.verification.store import (
    INVARIANTS,
    ROWS,
    SUMS,
    Ages,
    Slice,
    find_closed_range,
    find_in_slice,
)
from tollkeeper.policies.directory import PolicyDirectory
from tollkeeper.tenants import project_keys_store as project_keys

MODEL = "example/chat"
LIMITS = DefaultLimits(requests_per_minute=1_000_000, concurrency=100_000)


@dataclass(frozen=True, slots=True)
class LedgerTenant:
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId


@dataclass(frozen=True, slots=True)
class Process:
    """Contains the parts of a serving process that the ledger needs."""

    id: UUID
    database: Database
    store: LedgerStore
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Balance:
    """Contains the amounts of an account after all resolved holds were folded."""

    available: int
    held: int
    unsettled: int
    settled: int
    overage: int


# The organizations that the current test has created.
created: list[OrganizationId] = []


def make_database(conninfo: str, *, pool_size: int = 4) -> Database:
    return Database(conninfo, pool_size=pool_size, pool_timeout_s=30, statement_timeout_s=20)


@asynccontextmanager
async def running_process(conninfo: str, *, pool_size: int = 4) -> AsyncIterator[Process]:
    database = make_database(conninfo, pool_size=pool_size)
    await database.open()
    process = make_process(database)
    try:
        yield process
        await process.ledger.drain()
    finally:
        await database.close()


def make_process(database: Database, limits: DefaultLimits = LIMITS) -> Process:
    process_id = uuid4()
    store = LedgerStore(database, process_id, limits)
    return Process(process_id, database, store, make_ledger(store, database))


def make_ledger(store: LedgerStore, database: Database) -> Ledger:
    """Returns a ledger for organizations without policies."""
    return Ledger(store, PolicyDirectory(default_threshold=5000), Excesses(database), lambda: True)


async def make_tenant(database: Database, credit: int = 0) -> LedgerTenant:
    tenant = LedgerTenant(OrganizationId(uuid4()), ProjectId(uuid4()), KeyId(uuid4()))
    created.append(tenant.organization_id)
    await run(
        database,
        "INSERT INTO organizations (id, name, created_at) VALUES (%s, 'Acme', now())",
        tenant.organization_id,
    )
    await run(
        database,
        "INSERT INTO accounts (organization_id) VALUES (%s)",
        tenant.organization_id,
    )
    await add_project(database, tenant)
    if credit:
        await grant(database, tenant, credit)
    return tenant


async def another_project(database: Database, tenant: LedgerTenant) -> LedgerTenant:
    other = dataclasses.replace(tenant, project_id=ProjectId(uuid4()), key_id=KeyId(uuid4()))
    await add_project(database, other)
    return other


async def add_project(database: Database, tenant: LedgerTenant) -> None:
    await run(
        database,
        """
        INSERT INTO projects (organization_id, id, name, created_at) VALUES (%s, %s, 'Site', now())
        """,
        tenant.organization_id,
        tenant.project_id,
    )
    await run(
        database,
        "INSERT INTO project_accounts (organization_id, project_id) VALUES (%s, %s)",
        tenant.organization_id,
        tenant.project_id,
    )
    await _add_key(database, tenant)


async def _add_key(database: Database, tenant: LedgerTenant) -> None:
    await run(
        database,
        """
        INSERT INTO project_keys (organization_id, id, project_id, name, digest, redacted_value,
            permissions, created_at)
        VALUES (%s, %s, %s, 'app', %s, 'tk-...', '{}', now())
        """,
        tenant.organization_id,
        tenant.key_id,
        tenant.project_id,
        secrets.token_bytes(32),
    )


async def grant(database: Database, tenant: LedgerTenant, amount: int) -> None:
    async with database.transaction() as connection:
        await connection.execute(
            """
            UPDATE accounts SET granted = granted + %(amount)s, available = available + %(amount)s
            WHERE organization_id = %(organization)s
            """,
            {"amount": amount, "organization": tenant.organization_id},
        )
        await connection.execute(
            "INSERT INTO grants (organization_id, id, amount, note) VALUES (%s, %s, %s, 'test')",
            (tenant.organization_id, uuid4(), amount),
        )


def hold_of(tenant: LedgerTenant, amount: int) -> Hold:
    """Returns a hold of exactly this amount."""
    pricing = Pricing(
        prompt=0, completion=0, image=0, request=amount, input_cache_read=0, declared={}
    )
    bounds = Bounds(prompt_tokens=0, choices=1, output_tokens_each=1, images=0)
    assert hold_picousd(pricing, bounds) == amount
    return Hold(
        organization_id=tenant.organization_id,
        id=new_request_id(),
        project_id=tenant.project_id,
        key_id=tenant.key_id,
        model=MODEL,
        pricing=pricing,
        bounds=bounds,
        hold_picousd=amount,
    )


def settlement(hold: Hold, cost: int, *, by: str = "test") -> Resolution:
    """Returns a settlement with two line items, so that a test does not confuse a line item with the total."""
    return Resolution(
        organization_id=hold.organization_id,
        reservation_id=hold.id,
        kind=ResolutionKind.SETTLED,
        resolved_by=by,
        prompt=cost // 3,
        completion=cost - cost // 3,
    )


def release(hold: Hold) -> Resolution:
    return Resolution(
        organization_id=hold.organization_id,
        reservation_id=hold.id,
        kind=ResolutionKind.RELEASED,
        resolved_by="test",
    )


async def held(process: Process, tenant: LedgerTenant, amount: int) -> Hold:
    """Writes a hold, and checks that it is admitted."""
    hold = hold_of(tenant, amount)
    decision = await process.ledger.hold(hold)
    assert decision == Decision(), decision
    return hold


async def fold(process: Process, tenant: LedgerTenant) -> None:
    """Folds all resolved holds, with the transaction of a hold that is refused (its key is unknown)."""
    nobody = replace(hold_of(tenant, 0), key_id=KeyId(uuid4()))
    assert (await process.ledger.hold(nobody)).refusal is not None


async def balance_of(process: Process, tenant: LedgerTenant) -> Balance:
    """Folds all resolved holds, and returns the amounts of the account."""
    await fold(process, tenant)
    assert not await rows(
        process.database,
        "SELECT 1 FROM unfolded WHERE organization_id = %s",
        tenant.organization_id,
    )
    [row] = await rows(
        process.database,
        """
        SELECT available, held, unsettled, settled, overage FROM accounts
        WHERE organization_id = %s
        """,
        tenant.organization_id,
    )
    return Balance(*row)


async def rotate(database: Database, old: LedgerTenant, new: LedgerTenant) -> None:
    """Creates the key of `new` as the replacement of the key of `old`, which stays valid."""
    await _add_key(database, new)
    async with database.transaction() as connection:
        await lock_account_rows(connection, old.organization_id)
        key = await project_keys.find(connection, old.organization_id, old.key_id)
        assert key is not None
        assert await project_keys.replace(connection, key, new.key_id, 2**33)


async def run(database: Database, query: LiteralString, *values: Any) -> int:
    async with database.autocommit() as connection:
        return (await connection.execute(query, values)).rowcount


async def rows(database: Database, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
    async with database.autocommit() as connection:
        return await (await connection.execute(query, values)).fetchall()


async def count(database: Database, query: LiteralString, *values: Any) -> int:
    [[number]] = await rows(database, query, *values)
    return int(number)


async def register(process: Process) -> None:
    async with process.database.autocommit() as connection:
        await processes.heartbeat(connection, process.id)


async def differences(
    database: Database,
    *organizations: OrganizationId,
    age_s: float = 10**7,
    lease_s: float = 10**7,
) -> list[tuple[str, str, str]]:
    """Returns the differences that `ledger verify` finds, in all or in these organizations. By default,
    holds of live processes may be of any age."""
    if not organizations:
        async with database.snapshot() as connection:
            return await find_differences(connection, age_s=age_s, lease_s=lease_s)
    ages, found = Ages(age_s, lease_s), []
    async with _verifying_connection(database) as connection:
        everything = await _everything(connection)
        for organization_id in organizations:
            before = UUID(int=organization_id.int - 1)
            part = dataclasses.replace(everything, after=before, end=organization_id)
            found += await _find_in_small_slice(connection, part, ages)
    return found


async def _find_in_small_slice(
    connection: Connection, part: Slice, ages: Ages
) -> list[tuple[str, str, str]]:
    """Works like `find_in_slice`, but prepares the statements: planning takes longer than reading few rows."""
    await connection.execute("SET LOCAL enable_material TO off")
    parameters = dataclasses.asdict(part) | dataclasses.asdict(ages)
    return [
        (name, row[0], row[1])
        for name, query in _SLICE.items()
        async for row in await connection.execute(query, parameters, prepare=True)
    ]


async def find_differences(
    connection: Connection, *, age_s: float, lease_s: float
) -> list[tuple[str, str, str]]:
    """Returns the differences that `ledger verify` finds in all organizations, in the transaction of this
    connection."""
    everything = await _everything(connection)
    return await find_in_slice(connection, INVARIANTS, everything, Ages(age_s, lease_s))


async def _everything(connection: Connection) -> Slice:
    closed_from, closed_to = await find_closed_range(connection)
    return Slice(closed_from=closed_from, closed_to=closed_to)


# The invariants about organizations. Those about the schema are the same for every organization.
_SLICE = SUMS | ROWS
# Connections by database, the last used at the end. All tests share a server's 100 connections.
_verifying: dict[str, psycopg.AsyncConnection] = {}
_VERIFYING_MAX = 8


@asynccontextmanager
async def _verifying_connection(database: Database) -> AsyncIterator[Connection]:
    """Opens a snapshot on a connection that stays open and keeps its plans. Planning all queries takes ten
    times as long as reading the rows of one organization."""
    async with database.autocommit() as connection:
        dsn = connection.info.dsn
    verifying = _verifying.pop(dsn, None)
    if verifying is None or await _is_lost(verifying):
        verifying = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        await verifying.execute("SET plan_cache_mode = force_generic_plan")
    _verifying[dsn] = verifying
    if len(_verifying) > _VERIFYING_MAX:
        await _verifying.pop(next(iter(_verifying))).close()
    async with verifying.transaction():
        await verifying.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield verifying


async def _is_lost(connection: psycopg.AsyncConnection) -> bool:
    """Returns whether the connection has ended, for example because the server was restarted."""
    try:
        await connection.execute("SELECT")
    except psycopg.OperationalError:
        await connection.close()
        return True
    return False


@atexit.register
def _close_all() -> None:
    for connection in _verifying.values():
        connection.pgconn.finish()
