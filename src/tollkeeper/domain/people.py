"""Defines the users of the console and their roles."""

from dataclasses import dataclass
from enum import StrEnum

from tollkeeper.domain.access import OrganizationId


class Role(StrEnum):
    """Lists the roles in ascending order. An operator may do everything that a viewer may do, and
    an owner everything that an operator may do."""

    # Sees and administers one organization.
    ORGANIZATION = "organization"
    # Reads everything.
    VIEWER = "viewer"
    # Also makes all changes that are not reserved for owners.
    OPERATOR = "operator"
    # Also makes irreversible changes, and manages the console's users and their secrets.
    OWNER = "owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Person:
    # The permanent id that the identity provider gave the user.
    subject: str
    # The name for display. It does not identify the user, because some providers let users change
    # their names.
    name: str
    role: Role
    # The organization of a user with the role `organization`; None for all other roles.
    organization_id: OrganizationId | None = None

    def __post_init__(self) -> None:
        assert (self.organization_id is None) == (self.role is not Role.ORGANIZATION)
