"""`tollkeeper model`: the catalogue of models."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.command import Invocation, command, noun_app
from tollkeeper.cli.output import printable
from tollkeeper.cli.report import Report, show_report
from tollkeeper.domain.errors import NotFound, StateConflict
from tollkeeper.settings.price_list import PriceReview, read_price_list, review, toml_text

app = noun_app("The catalogue of models.")


@command(app, "import", example="tollkeeper model import prices.json --output prices.toml")
def model_import(
    invocation: Invocation,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A list of model prices: one JSON object with input_cost_per_token and so on.",
            show_default=False,
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="MODEL=NAME",
            help="Under which name the list has a model. May be repeated.",
            show_default="its upstream_model or id",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML", help="Write the list's prices to this new file, to paste from."
        ),
    ] = None,
) -> None:
    """Show where a list of prices differs from the catalogue. The settings are not changed."""
    models = invocation.settings().models
    names = dict(map(_pair, name or ()))
    for unknown in names.keys() - {model.id for model in models}:
        raise NotFound(f"There is no model {unknown!r} in the catalogue.")
    found = review(models, read_price_list(file), names)
    if output is not None:
        _write_new(output, toml_text(found, models))
    show_report(
        Report(_content(found, output), _picture(found, output)), as_json=invocation.as_json
    )


def _pair(text: str) -> tuple[str, str]:
    model, equals, name = text.partition("=")
    if not (model and equals and name):
        raise typer.BadParameter(f"{text!r} is not MODEL=NAME.", param_hint="--name")
    return model, name


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise StateConflict(f"{path} exists already and is left as it is.") from None


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
        parts.append(Text(f"Not in the list: {names}. Give --name MODEL=NAME.", style="yellow"))
    if output is not None:
        parts.append(Text(f"Written to {output}. The settings are as they were."))
    return Group(*parts)
