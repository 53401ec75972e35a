"""Declares what operators can do: an action's arguments, permission, confirmation and notice.

A command and a form of the console that do the same use the same declaration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Concatenate, Generic, ParamSpec, TypeVar

from tollkeeper.tenants.people import Role

# What the action needs: `Services`, or `AnyServices` if an organization's users may use it, too.
S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    # The minimum role: viewer, operator or owner.
    minimum: Role
    # Whether users with the role `organization` may do it, too. `own_services.py` restricts them to
    # their own organization.
    organization: bool = False

    def allows(self, role: Role) -> bool:
        if role is Role.ORGANIZATION:
            return self.organization
        return role.rank >= self.minimum.rank


# The names that end with `_OWN` also allow the role `organization`.
READ = Access(Role.VIEWER)
READ_OWN = Access(Role.VIEWER, organization=True)
WORK = Access(Role.OPERATOR)
WORK_OWN = Access(Role.OPERATOR, organization=True)
# For most irreversible changes, for new admin keys, and for the list of signed-in users.
OWNER = Access(Role.OWNER)
OWNER_OWN = Access(Role.OWNER, organization=True)


@dataclass(frozen=True, slots=True)
class Question:
    """Contains the texts of a page that asks the user to confirm a change."""

    title: str
    consequence: str
    # The label of the button that confirms the change.
    button: str
    facts: Mapping[str, object] = field(default_factory=dict)
    # Hidden fields that the confirmation form has in addition to the fields of the original form.
    extra_fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[S, T]):
    """Is an action with its arguments."""

    run: Callable[[S], Awaitable[T]]
    # Returns the question that has to be confirmed first; None if there is none.
    ask: Callable[[S], Awaitable[Question | None]]


@dataclass(frozen=True, slots=True)
class Action(Generic[S, P, T]):
    access: Access
    run: Callable[Concatenate[S, P], Awaitable[T]]
    # What the next page says about the result.
    notice: Callable[[T], str]
    ask: Callable[Concatenate[S, P], Awaitable[Question | None]] | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Prepared[S, T]:
        async def ask(services: S) -> Question | None:
            return None if self.ask is None else await self.ask(services, *arguments, **named)

        return Prepared(lambda services: self.run(services, *arguments, **named), ask)
