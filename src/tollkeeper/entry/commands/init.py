"""`tollkeeper init`: writes a commented settings file, or converts a LiteLLM configuration."""

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.output import CommandOutput, Listing, Record, write_new_file
from tollkeeper.setup.settings import DEFAULT_FILE, FILE_NAME

_NEXT = "Next: tollkeeper migrate, then tollkeeper serve."

app = command_app()


@command(app, "init", example="tollkeeper init /etc/tollkeeper")
def init(
    _invocation: Invocation,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Write the file to this folder.",
            show_default="the current folder",
        ),
    ] = Path(),
    from_litellm: Annotated[
        Path | None,
        typer.Option(
            metavar="YAML",
            help="Convert this configuration of a LiteLLM proxy, and list the settings that have no "
            "equivalent.",
            show_default=False,
        ),
    ] = None,
) -> CommandOutput:
    """Write a settings file, tollkeeper.toml, with comments."""
    path = directory.resolve() / FILE_NAME
    if from_litellm is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new_file(path, DEFAULT_FILE.read_text(encoding="utf-8"))
        return Record({"path": str(path)}, note=_NEXT)
    from tollkeeper.setup import build_catalog
    from tollkeeper.setup.settings.litellm import convert
    from tollkeeper.setup.settings.load import check_settings

    text, unmapped = convert(from_litellm)
    catalog = build_catalog(check_settings(path, text, tomllib.loads(text)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_new_file(path, text)
    return Listing(
        [{"setting": omitted.setting, "reason": omitted.reason} for omitted in unmapped],
        columns=("setting", "reason"),
        summary={"path": str(path), "models": len(catalog.models)},
        note=f"{path} has {len(catalog.models)} models. Check each line above, then run: tollkeeper doctor.",
    )
