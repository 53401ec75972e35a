"""The SQL of projects."""

from collections.abc import Sequence
from typing import Any

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.tenants.organization import Project

_COLUMNS = """
    id, organization_id, name,
    extract(epoch FROM created_at)::bigint, extract(epoch FROM archived_at)::bigint, models
"""


async def insert(connection: Connection, project: Project) -> None:
    await connection.execute(
        """
        INSERT INTO projects (organization_id, id, name, created_at)
        VALUES (%s, %s, %s, to_timestamp(%s))
        """,
        (project.organization_id, project.id, project.name, project.created_at),
    )
    await connection.execute(
        "INSERT INTO project_accounts (organization_id, project_id) VALUES (%s, %s)",
        (project.organization_id, project.id),
    )


async def find(
    connection: Connection, organization_id: OrganizationId, project_id: ProjectId
) -> Project | None:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE organization_id = %s AND id = %s",
        (organization_id, project_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _project(row)


async def find_and_lock(
    connection: Connection, organization_id: OrganizationId, project_id: ProjectId
) -> Project | None:
    """Until the transaction ends, so nobody archives it."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE organization_id = %s AND id = %s FOR NO KEY UPDATE",
        (organization_id, project_id),
    )
    row = await cursor.fetchone()
    return None if row is None else _project(row)


async def find_anywhere(connection: Connection, project_id: ProjectId) -> Project | None:
    """For operators only: doesn't check the organization."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE id = %s",
        (project_id,),
    )
    row = await cursor.fetchone()
    return None if row is None else _project(row)


async def find_all(connection: Connection, organization_id: OrganizationId) -> list[Project]:
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE organization_id = %s ORDER BY created_at, id",
        (organization_id,),
    )
    return [_project(row) for row in await cursor.fetchall()]


async def unknown_ids(
    connection: Connection, organization_id: OrganizationId, project_ids: Sequence[ProjectId]
) -> list[ProjectId]:
    cursor = await connection.execute(
        """
        SELECT wanted.id FROM unnest(%s::uuid[]) WITH ORDINALITY AS wanted (id, position)
        LEFT JOIN projects p ON p.organization_id = %s AND p.id = wanted.id
        WHERE p.id IS NULL ORDER BY wanted.position
        """,
        (list(project_ids), organization_id),
    )
    return [row[0] for row in await cursor.fetchall()]


async def archive(
    connection: Connection, organization_id: OrganizationId, project_id: ProjectId, now: int
) -> bool:
    """False if it doesn't exist or was already archived."""
    cursor = await connection.execute(
        """
        UPDATE projects SET archived_at = to_timestamp(%s)
        WHERE organization_id = %s AND id = %s AND archived_at IS NULL
        """,
        (now, organization_id, project_id),
    )
    return cursor.rowcount == 1


async def write_models(
    connection: Connection,
    organization_id: OrganizationId,
    project_id: ProjectId,
    models: Sequence[str],
) -> None:
    """Empty means every model."""
    await connection.execute(
        "UPDATE projects SET models = %s WHERE organization_id = %s AND id = %s",
        (list(models) or None, organization_id, project_id),
    )


def _project(row: tuple[Any, ...]) -> Project:
    identity, organization_id, name, created_at, archived_at, models = row
    return Project(
        id=identity,
        organization_id=organization_id,
        name=name,
        created_at=created_at,
        archived_at=archived_at,
        models=tuple(models or ()),
    )
