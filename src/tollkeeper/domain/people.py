"""Defines the users of the console and their roles."""

from dataclasses import dataclass
from enum import StrEnum

from tollkeeper.domain.access import OrganizationId


class Role(StrEnum):
    """Lists the roles in ascending order. Each of the last three includes the one before it."""

    # Sees and administers one organization.
    ORGANIZATION = "organization"
    # Reads everything.
    VIEWER = "viewer"
    # Does the daily work.
    OPERATOR = "operator"
    # Also makes irreversible changes, and manages users and their secrets.
    OWNER = "owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Person:
    # The identity provider's permanent id of the user.
    subject: str
    # For display. The user may be able to change it at the provider.
    name: str
    role: Role
    # The organization of a user with the role `organization`; None for all others.
    organization_id: OrganizationId | None = None

    def __post_init__(self) -> None:
        assert (self.organization_id is None) == (self.role is not Role.ORGANIZATION)
