"""Organizations, projects, project keys and admin keys as stored. Times are Unix seconds."""

from dataclasses import dataclass

from tollkeeper.core.access import KeyId, KeyStatus, OrganizationId, ProjectId, key_status

NAME_LENGTH_MAX = 256


@dataclass(frozen=True, slots=True)
class Organization:
    id: OrganizationId
    name: str
    created_at: int
    # That it has passed (`Model.required_checks`).
    checks: tuple[str, ...] = ()
    archived_at: int | None = None

    @property
    def status(self) -> str:
        return _status(self.archived_at)


@dataclass(frozen=True, slots=True)
class Project:
    id: ProjectId
    organization_id: OrganizationId
    name: str
    created_at: int
    archived_at: int | None
    # Empty: every model.
    models: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        return _status(self.archived_at)


@dataclass(frozen=True, slots=True)
class ProjectKey:
    id: KeyId
    organization_id: OrganizationId
    project_id: ProjectId
    project_name: str
    name: str
    redacted_value: str
    permissions: tuple[str, ...]
    created_at: int
    last_used_at: int | None
    expires_at: int | None
    suspended_at: int | None
    revoked_at: int | None
    # The project's list applies too. Empty: every model of the project.
    models: tuple[str, ...] = ()

    def status(self, now: int) -> KeyStatus:
        return key_status(
            revoked=self.revoked_at is not None,
            suspended=self.suspended_at is not None,
            expires_at=self.expires_at,
            now=now,
        )


@dataclass(frozen=True, slots=True)
class AdminKey:
    id: KeyId
    organization_id: OrganizationId
    name: str
    redacted_value: str
    permissions: tuple[str, ...]
    created_at: int
    last_used_at: int | None
    expires_at: int | None
    revoked_at: int | None

    def status(self, now: int) -> KeyStatus:
        return key_status(
            revoked=self.revoked_at is not None,
            suspended=False,
            expires_at=self.expires_at,
            now=now,
        )


def _status(archived_at: int | None) -> str:
    return "active" if archived_at is None else "archived"
