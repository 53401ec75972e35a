"""Arguments that several commands take. A text that is not an id is reported as not found."""

from typing import Annotated
from uuid import UUID

import typer

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.errors import NotFound

OrganizationArgument = Annotated[
    str, typer.Argument(metavar="ORG", help="The organization's id.", show_default=False)
]
ProjectArgument = Annotated[
    str, typer.Argument(metavar="PROJECT", help="The project's id.", show_default=False)
]
KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="The key's id, not its value.", show_default=False)
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A name for people.", show_default=False)
]
ExpiresIn = Annotated[
    int | None,
    typer.Option(
        "--expires-in", metavar="SECONDS", help="Lifetime of the key.", show_default="no expiry"
    ),
]


def organization_id(text: str) -> OrganizationId:
    return OrganizationId(_id(text, "organization"))


def project_id(text: str) -> ProjectId:
    return ProjectId(_id(text, "project"))


def project_key_id(text: str) -> KeyId:
    return KeyId(_id(text, "project key"))


def admin_key_id(text: str) -> KeyId:
    return KeyId(_id(text, "admin key"))


def _id(text: str, noun: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no {noun} {text}.") from None
