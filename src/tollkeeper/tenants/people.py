"""The users of the console and their roles."""

from dataclasses import dataclass
from enum import StrEnum

from tollkeeper.core.access import OrganizationId


class Role(StrEnum):
    """Ascending: each may do what the one before may."""

    # Sees and administers one organization.
    ORGANIZATION = "organization"
    # Reads everything.
    VIEWER = "viewer"
    # Also makes all changes that are not reserved for owners.
    OPERATOR = "operator"
    # Also irreversible changes, the console's users and their secrets.
    OWNER = "owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Person:
    # The permanent id of the identity provider.
    subject: str
    # It doesn't identify the user: some providers let users change it.
    name: str
    role: Role
    # Only with the role `organization`.
    organization_id: OrganizationId | None = None

    def __post_init__(self) -> None:
        assert (self.organization_id is None) == (self.role is not Role.ORGANIZATION)
