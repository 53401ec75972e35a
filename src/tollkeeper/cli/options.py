"""The two options that every command takes, wherever they stand on the line."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file. Else $TOLLKEEPER_CONFIG, ./tollkeeper.toml, the defaults.",
        show_default=False,
    ),
]
# Under this name the command line keeps where workers come from, for the commands that serve.
NURSERY = "tollkeeper.worker_starter"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    config: Path | None = None
    as_json: bool = False

    def overlaid(self, config: Path | None, as_json: bool) -> "SharedOptions":
        """What stands further right on the line wins."""
        return replace(self, config=config or self.config, as_json=as_json or self.as_json)


def shared_options(context: typer.Context) -> SharedOptions:
    """What was said so far, further left on the line."""
    found = context.obj
    return found if isinstance(found, SharedOptions) else SharedOptions()


def keep_shared_options(
    context: typer.Context, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """A group's part of the line: its options are the command's."""
    context.obj = shared_options(context).overlaid(config, as_json)
