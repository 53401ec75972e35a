"""Permissions, API keys and the callers that they identify."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType
from uuid import UUID

from tollkeeper.core.allowed_models import allows
from tollkeeper.core.errors import PermissionDenied

OrganizationId = NewType("OrganizationId", UUID)
ProjectId = NewType("ProjectId", UUID)
KeyId = NewType("KeyId", UUID)


class Permission(StrEnum):
    INFERENCE_WRITE = "inference:write"
    MODELS_READ = "models:read"
    POLICIES_READ = "policies:read"
    POLICIES_WRITE = "policies:write"
    PROJECT_API_KEYS_CREATE = "project_api_keys:create"
    PROJECTS_CREATE = "projects:create"
    BILLING_READ = "billing:read"
    ADMIN_API_KEYS_READ = "admin_api_keys:read"
    ADMIN_API_KEYS_REVOKE = "admin_api_keys:revoke"


# All other permissions are for admin keys.
PROJECT_KEY_PERMISSIONS = frozenset({Permission.INFERENCE_WRITE, Permission.MODELS_READ})
ADMIN_PERMISSIONS = frozenset(Permission) - PROJECT_KEY_PERMISSIONS


class KeyKind(StrEnum):
    """Each has its own prefix, database table and HTTP routes."""

    PROJECT = "project"
    ADMIN = "admin"


class KeyStatus(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"
    SUSPENDED = "suspended"


def key_status(*, revoked: bool, suspended: bool, expires_at: int | None, now: int) -> KeyStatus:
    """The most permanent status wins: a revocation is final, an expiry only depends on the clock, and an
    operator can end a suspension."""
    if revoked:
        return KeyStatus.REVOKED
    if expires_at is not None and expires_at <= now:
        return KeyStatus.EXPIRED
    if suspended:
        return KeyStatus.SUSPENDED
    return KeyStatus.ACTIVE


@dataclass(frozen=True, slots=True)
class AdminCaller:
    organization_id: OrganizationId
    key_id: KeyId
    permissions: frozenset[str]


@dataclass(frozen=True, slots=True)
class ProjectCaller:
    organization_id: OrganizationId
    project_id: ProjectId
    key_id: KeyId
    permissions: frozenset[str]
    # As of authentication; admission reads both lists again.
    model_lists: tuple[tuple[str, ...], ...] = ()

    def may_use(self, model_id: str) -> bool:
        return all(allows(entries, model_id) for entries in self.model_lists)


Caller = AdminCaller | ProjectCaller


def require(caller: Caller, permission: Permission) -> None:
    if permission not in caller.permissions:
        raise PermissionDenied(f"This API key lacks the permission {permission}.")
