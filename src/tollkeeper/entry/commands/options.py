"""`--config` and `--json`, which stand before or after a command's name."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read this settings file. Default: $TOLLKEEPER_CONFIG, otherwise ./tollkeeper.toml, "
        "otherwise built-in settings.",
        show_default=False,
    ),
]
# In the Typer context, for `serve` and `demo`.
WORKER_STARTER = "tollkeeper.worker_starter"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    config: Path | None = None
    as_json: bool = False

    def overlaid(self, config: Path | None, as_json: bool) -> "SharedOptions":
        """By values further right on the command line."""
        return replace(self, config=config or self.config, as_json=as_json or self.as_json)


def shared_options(context: typer.Context) -> SharedOptions:
    """From before the command's name."""
    options = context.obj
    return options if isinstance(options, SharedOptions) else SharedOptions()


def keep_shared_options(
    context: typer.Context, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Stores the options that stand before the command's name in the Typer context. The command reads
    them there and overrides them with the options after its name."""
    context.obj = shared_options(context).overlaid(config, as_json)
