"""`tollkeeper model`: the catalogue of models."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.command import Invocation, command, noun_app
from tollkeeper.cli.output import printable, write_new_file
from tollkeeper.cli.report import Report, show_report
from tollkeeper.domain.errors import NotFound
from tollkeeper.settings.price_list import PriceReview, review, toml_text

app = noun_app("The catalogue of models.")


@command(app, "import", example="tollkeeper model import --output prices.toml")
def model_import(
    invocation: Invocation,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="MODEL=PROVIDER/NAME",
            help="The provider and name of a model in the list. May be repeated.",
            show_default="by its backend's address and upstream_model",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML", help="Write the list's prices to this new file, to paste from."
        ),
    ] = None,
) -> None:
    """Show where the public prices of genai-prices differ from the catalogue. Changes no settings."""
    settings = invocation.settings()
    names = dict(map(_pair, name or ()))
    for unknown in names.keys() - {model.id for model in settings.models}:
        raise NotFound(f"There is no model {unknown!r} in the catalogue.")
    found = review(settings, names)
    if output is not None:
        write_new_file(output, toml_text(found, settings.models))
    show_report(
        Report(_content(found, output), _picture(found, output)), as_json=invocation.as_json
    )


def _pair(text: str) -> tuple[str, str]:
    model, equals, name = text.partition("=")
    if not (model and equals and "/" in name):
        raise typer.BadParameter(f"{text!r} is not MODEL=PROVIDER/NAME.", param_hint="--name")
    return model, name


def _content(found: PriceReview, output: Path | None) -> dict[str, Any]:
    return {
        "data": [
            {
                "model": one.model,
                "listed_as": one.listed_as,
                "setting": one.setting,
                "declared": one.declared,
                "listed": one.listed,
                "problem": one.problem or None,
            }
            for one in found.differences
        ],
        "unknown": list(found.unknown),
        "output": None if output is None else str(output),
    }


def _picture(found: PriceReview, output: Path | None) -> RenderableType:
    parts: list[RenderableType] = []
    if found.differences:
        table = Table("model", "setting", "catalogue", "list", box=SIMPLE_HEAD, pad_edge=False)
        for one in found.differences:
            listed = printable(one.listed) + (f"  ({one.problem})" if one.problem else "")
            table.add_row(printable(one.model), one.setting, one.declared or "-", Text(listed))
        parts.append(table)
    elif found.compared:
        parts.append(Text(f"Models that agree with the list: {found.compared}."))
    if found.unknown:
        names = ", ".join(printable(model) for model in found.unknown)
        parts.append(
            Text(f"Not in the list: {names}. Give --name MODEL=PROVIDER/NAME.", style="yellow")
        )
    if output is not None:
        parts.append(Text(f"Written to {output}. The settings are as they were."))
    return Group(*parts)
