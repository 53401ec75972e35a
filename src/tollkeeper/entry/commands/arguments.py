"""Arguments of several commands. Objects are named by their name, their id or its beginning."""

from collections.abc import Iterable
from typing import Annotated

import typer

from tollkeeper.core.access import ADMIN_PERMISSIONS, PROJECT_KEY_PERMISSIONS
from tollkeeper.entry.commands.amounts import unix_seconds

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
        help="Begin at this time: YYYY-MM-DD (midnight UTC) or Unix seconds.",
        parser=unix_seconds,
        show_default="a week ago",
    ),
]
UntilOption = Annotated[
    int | None,
    typer.Option(
        metavar="WHEN",
        help="End before this time: YYYY-MM-DD (midnight UTC) or Unix seconds.",
        parser=unix_seconds,
        show_default="now",
    ),
]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name for the new or renamed object.", show_default=False
    ),
]
ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="The ids of the allowed models. 'claude-*' allows all ids that begin with claude-.",
        show_default=False,
    ),
]
EveryModelOption = Annotated[
    bool,
    typer.Option(
        "--every", help="Remove the list of allowed models, so that every model is allowed."
    ),
]
ExpiresIn = Annotated[
    int | None,
    typer.Option(
        "--expires-in",
        metavar="SECONDS",
        help="Make the key expire after this number of seconds.",
        show_default="no expiry",
    ),
]


def listed_permissions(permissions: Iterable[str]) -> str:
    return ", ".join(sorted(permissions))


def admin_permissions(beginning: str) -> list[str]:
    """Completes in the shell."""
    return _beginning_with(beginning, ADMIN_PERMISSIONS)


def customer_permissions(beginning: str) -> list[str]:
    """Completes in the shell."""
    return _beginning_with(beginning, PROJECT_KEY_PERMISSIONS)


def _beginning_with(beginning: str, words: Iterable[str]) -> list[str]:
    return sorted(str(word) for word in words if word.startswith(beginning))
