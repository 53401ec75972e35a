"""The SQL of policies and their published versions."""

from collections.abc import Mapping
from typing import Any, LiteralString

from tollkeeper.core.access import OrganizationId
from tollkeeper.database.database import Connection
from tollkeeper.policies.calibration import store as calibrations
from tollkeeper.policies.policy import (
    Direction,
    Mode,
    Policy,
    PolicyState,
    PolicyVersion,
    Rule,
    Scope,
)
from tollkeeper.policies.policy_set import PublishedPolicy

_POLICY_COLUMNS: LiteralString = """
    p.id, p.organization_id, p.name, p.description, p.state, p.revision,
    extract(epoch FROM p.created_at)::bigint, extract(epoch FROM p.updated_at)::bigint,
    p.base_version, p.rule, p.direction, p.mode, p.scope, p.project_ids, p.threshold
"""
_VERSION_COLUMNS: LiteralString = """
    v.id, v.version, v.name, extract(epoch FROM v.published_at)::bigint,
    v.rule, v.direction, v.mode, v.scope, v.project_ids, v.threshold
"""
_COLUMNS: LiteralString = ", ".join((_POLICY_COLUMNS, _VERSION_COLUMNS, calibrations.COLUMNS))
_FROM: LiteralString = """
    FROM policies p LEFT JOIN policy_versions v
      ON v.organization_id = p.organization_id AND v.policy_id = p.id AND v.version = p.current_version
    LEFT JOIN policy_calibrations c
      ON c.organization_id = p.organization_id AND c.policy_id = p.id AND c.number = p.active_calibration
"""


async def insert(connection: Connection, policy: Policy) -> None:
    await connection.execute(
        """
        INSERT INTO policies (organization_id, id, name, description, state, revision, created_at,
                              updated_at, base_version, rule, direction, mode, scope, project_ids, threshold)
        VALUES (%s, %s, %s, %s, %s, %s, to_timestamp(%s), to_timestamp(%s), %s, %s, %s, %s, %s, %s, %s)
        """,
        (
            policy.organization_id,
            policy.id,
            policy.name,
            policy.description,
            policy.state,
            policy.revision,
            policy.created_at,
            policy.updated_at,
            policy.base_version,
            *_rule_values(policy.draft),
        ),
    )


async def find(
    connection: Connection, organization_id: OrganizationId, policy_id: str
) -> Policy | None:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE p.organization_id = %s AND p.id = %s",
        (organization_id, policy_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _policy(row)


async def find_and_lock(
    connection: Connection, organization_id: OrganizationId, policy_id: str
) -> Policy | None:
    """Until the transaction ends, so nobody changes it before we increment its revision."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE p.organization_id = %s AND p.id = %s FOR UPDATE OF p",
        (organization_id, policy_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _policy(row)


async def find_organization(connection: Connection, policy_id: str) -> OrganizationId | None:
    """For operators, who name a policy only by its id."""
    cursor = await connection.execute(
        "SELECT organization_id FROM policies WHERE id = %s", (policy_id,)
    )
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def find_all(connection: Connection, organization_id: OrganizationId) -> list[Policy]:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE p.organization_id = %s ORDER BY p.created_at, p.id",
        (organization_id,),
    )
    return [_policy(row) for row in await cursor.fetchall()]


async def count(connection: Connection, organization_id: OrganizationId) -> int:
    cursor = await connection.execute(
        "SELECT count(*) FROM policies WHERE organization_id = %s", (organization_id,)
    )
    (number,) = await cursor.fetchone() or (0,)
    return int(number)


async def find_published(
    connection: Connection,
    organization_ids: list[OrganizationId],
    known: Mapping[str, PolicyVersion],
) -> list[PublishedPolicy]:
    """Paused ones too. Takes versions from `known` by id: they never change, and an organization
    can have megabytes."""
    cursor = await connection.execute(
        f"""
        SELECT p.organization_id, p.id, p.state, v.id, {calibrations.COLUMNS} {_FROM}
        WHERE p.organization_id = ANY (%s) AND p.current_version IS NOT NULL
        ORDER BY p.created_at, p.id
        """,
        (organization_ids,),
    )
    rows = await cursor.fetchall()
    new = [row[1] for row in rows if row[3] not in known]
    if new:
        known = {**known, **await _find_current_versions(connection, organization_ids, new)}
    return [
        PublishedPolicy(
            organization_id=row[0],
            id=row[1],
            is_paused=row[2] == PolicyState.PAUSED,
            version=known[row[3]],
            calibration=None if row[4] is None else calibrations.stored_calibration(row[4:]),
        )
        for row in rows
    ]


async def _find_current_versions(
    connection: Connection, organization_ids: list[OrganizationId], policy_ids: list[str]
) -> dict[str, PolicyVersion]:
    cursor = await connection.execute(
        f"SELECT {_VERSION_COLUMNS} {_FROM} WHERE p.organization_id = ANY (%s) AND p.id = ANY (%s)",
        (organization_ids, policy_ids),
    )
    return {row[0]: _version(row) for row in await cursor.fetchall()}


async def increment_epoch(connection: Connection, organization_id: OrganizationId) -> None:
    """So every process reads its policies again. Locks the account, so an admission sees a whole
    change or none. Random: if a failover to an asynchronous standby loses a change that a process
    has read, the next one mustn't have the same epoch, or it would keep the lost policies."""
    await connection.execute(
        """
        UPDATE accounts SET epoch = epoch + 1 + floor(random() * 4294967296)::bigint
        WHERE organization_id = %s
        """,
        (organization_id,),
    )


async def read_epoch(connection: Connection, organization_id: OrganizationId) -> int:
    cursor = await connection.execute(
        "SELECT epoch FROM accounts WHERE organization_id = %s", (organization_id,)
    )
    row = await cursor.fetchone()
    assert row is not None, "every organization has an account"
    return int(row[0])


async def update(connection: Connection, policy: Policy) -> None:
    """Every column that editing, publishing, pausing or resuming may change. Lock it with
    `find_and_lock`."""
    current_version = None if policy.published is None else policy.published.version
    cursor = await connection.execute(
        """
        UPDATE policies SET name = %s, description = %s, state = %s, revision = %s,
            updated_at = to_timestamp(%s), base_version = %s, rule = %s, direction = %s, mode = %s,
            scope = %s, project_ids = %s, threshold = %s, current_version = %s
        WHERE organization_id = %s AND id = %s
        """,
        (
            policy.name,
            policy.description,
            policy.state,
            policy.revision,
            policy.updated_at,
            policy.base_version,
            *_rule_values(policy.draft),
            current_version,
            policy.organization_id,
            policy.id,
        ),
    )
    assert cursor.rowcount == 1


async def insert_version(connection: Connection, policy: Policy) -> None:
    version = policy.published
    assert version is not None
    await connection.execute(
        """
        INSERT INTO policy_versions (organization_id, policy_id, version, id, name, published_at,
                                     rule, direction, mode, scope, project_ids, threshold)
        VALUES (%s, %s, %s, %s, %s, to_timestamp(%s), %s, %s, %s, %s, %s, %s)
        """,
        (
            policy.organization_id,
            policy.id,
            version.version,
            version.id,
            version.name,
            version.published_at,
            *_rule_values(version.rule),
        ),
    )


async def find_versions(
    connection: Connection, organization_id: OrganizationId, policy_id: str, *, limit: int
) -> list[PolicyVersion]:
    cursor = await connection.execute(
        f"""
        SELECT {_VERSION_COLUMNS} FROM policy_versions v
        WHERE v.organization_id = %s AND v.policy_id = %s ORDER BY v.version DESC LIMIT %s
        """,
        (organization_id, policy_id, limit),
    )
    return [_version(row) for row in await cursor.fetchall()]


def _rule_values(rule: Rule) -> tuple[Any, ...]:
    return (
        rule.rule,
        rule.direction,
        rule.mode,
        rule.scope,
        list(rule.project_ids),
        rule.match_threshold_basis_points,
    )


def _rule(row: tuple[Any, ...]) -> Rule:
    rule, direction, mode, scope, project_ids, threshold = row
    return Rule(
        rule=rule,
        direction=Direction(direction),
        mode=Mode(mode),
        scope=Scope(scope),
        project_ids=tuple(project_ids),
        match_threshold_basis_points=threshold,
    )


def _version(row: tuple[Any, ...]) -> PolicyVersion:
    return PolicyVersion(
        id=row[0], version=row[1], name=row[2], published_at=row[3], rule=_rule(row[4:])
    )


def _policy(row: tuple[Any, ...]) -> Policy:
    return Policy(
        id=row[0],
        organization_id=row[1],
        name=row[2],
        description=row[3],
        state=PolicyState(row[4]),
        revision=row[5],
        created_at=row[6],
        updated_at=row[7],
        base_version=row[8],
        draft=_rule(row[9:15]),
        published=None if row[15] is None else _version(row[15:25]),
        calibration=None if row[25] is None else calibrations.stored_calibration(row[25:]),
    )
