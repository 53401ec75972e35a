"""Defines arguments that several commands take. Ids may be shortened to their first characters or
replaced by names."""

from collections.abc import Iterable
from typing import Annotated

import typer

from tollkeeper.cli.amounts import unix_seconds
from tollkeeper.domain.access import ADMIN_PERMISSIONS, CUSTOMER_PERMISSIONS

OrganizationArgument = Annotated[
    str,
    typer.Argument(metavar="ORG", help="The organization's name or id.", show_default=False),
]
ProjectArgument = Annotated[
    str, typer.Argument(metavar="PROJECT", help="The project's name or id.", show_default=False)
]
KeyArgument = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The key's name or id, not its value.", show_default=False),
]
SinceOption = Annotated[
    int | None,
    typer.Option(
        metavar="WHEN",
        help="YYYY-MM-DD or unix seconds.",
        parser=unix_seconds,
        show_default="a week ago",
    ),
]
UntilOption = Annotated[
    int | None,
    typer.Option(
        metavar="WHEN",
        help="YYYY-MM-DD or unix seconds; not included.",
        parser=unix_seconds,
        show_default="now",
    ),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A name for people.", show_default=False)
]
ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="Ids of models; one that ends with * stands for all ids that begin like it.",
        show_default=False,
    ),
]
EveryModelOption = Annotated[bool, typer.Option("--every", help="Remove the list.")]
ExpiresIn = Annotated[
    int | None,
    typer.Option(
        "--expires-in", metavar="SECONDS", help="Lifetime of the key.", show_default="no expiry"
    ),
]


def listed_permissions(permissions: Iterable[str]) -> str:
    return ", ".join(sorted(permissions))


def admin_permissions(beginning: str) -> list[str]:
    """Completes permissions in the shell."""
    return _beginning_with(beginning, ADMIN_PERMISSIONS)


def customer_permissions(beginning: str) -> list[str]:
    """Completes permissions in the shell."""
    return _beginning_with(beginning, CUSTOMER_PERMISSIONS)


def _beginning_with(beginning: str, words: Iterable[str]) -> list[str]:
    return sorted(str(word) for word in words if word.startswith(beginning))
