"""`tollkeeper init`: a commented settings file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from tollkeeper.cli.command import Invocation, command, command_app
from tollkeeper.cli.output import Record
from tollkeeper.domain.errors import StateConflict
from tollkeeper.settings import DEFAULT_FILE

FILE_NAME = "tollkeeper.toml"

app = command_app()


@command(app, "init", example="tollkeeper init /etc/tollkeeper")
def init(
    _invocation: Invocation,
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where to write it.", show_default="the current folder"),
    ] = Path(),
) -> Record:
    """Write a commented tollkeeper.toml."""
    path = directory.resolve() / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(DEFAULT_FILE.read_text(encoding="utf-8"))
    except FileExistsError:
        raise StateConflict(f"{path} exists already and is left as it is.") from None
    return Record({"path": str(path)}, note="Next: tollkeeper migrate, then tollkeeper serve.")
