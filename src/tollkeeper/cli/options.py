"""Defines the two options that every command takes, before or after the command's name."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file. Default: $TOLLKEEPER_CONFIG, ./tollkeeper.toml, a built-in file.",
        show_default=False,
    ),
]
# The context key of the `WorkerStarter` for commands that serve.
WORKER_STARTER = "tollkeeper.worker_starter"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    config: Path | None = None
    as_json: bool = False

    def overlaid(self, config: Path | None, as_json: bool) -> "SharedOptions":
        """Returns these options, replaced by options further right on the command line."""
        return replace(self, config=config or self.config, as_json=as_json or self.as_json)


def shared_options(context: typer.Context) -> SharedOptions:
    """Returns the options further left on the command line."""
    options = context.obj
    return options if isinstance(options, SharedOptions) else SharedOptions()


def keep_shared_options(
    context: typer.Context, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Stores the options before the command's name for the command."""
    context.obj = shared_options(context).overlaid(config, as_json)
