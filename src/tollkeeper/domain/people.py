"""The people who use the console, and their roles."""

from dataclasses import dataclass
from enum import StrEnum

from tollkeeper.domain.access import OrganizationId


class Role(StrEnum):
    """From the least to the most powerful. Each of the last three may do what the one before it may."""

    # Sees and administers one organization.
    ORGANIZATION = "organization"
    # Reads everything.
    VIEWER = "viewer"
    # Does the daily work.
    OPERATOR = "operator"
    # Also does what cannot be undone, and what concerns people and their secrets.
    OWNER = "owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Person:
    # What the identity provider calls the person: it never changes.
    subject: str
    # For readers. The person may be able to change it at the provider.
    name: str
    role: Role
    # The organization of a person with the role `organization`; None for all others.
    organization_id: OrganizationId | None = None

    def __post_init__(self) -> None:
        assert (self.organization_id is None) == (self.role is not Role.ORGANIZATION)
