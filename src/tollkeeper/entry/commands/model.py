"""`tollkeeper model`: compares the catalogue's prices with a public list."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.core.errors import NotFound
from tollkeeper.entry.commands.command import Invocation, command, noun_app
from tollkeeper.entry.commands.output import printable, write_new_file
from tollkeeper.entry.commands.report import Report, show_report
from tollkeeper.setup.settings.price_list import PriceReview, review, toml_text

app = noun_app("Compare the configured models with public prices.")


@command(app, "import", example="tollkeeper model import --output prices.toml")
def model_import(
    invocation: Invocation,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="MODEL=PROVIDER/NAME",
            help="The provider and name under which the price list has MODEL. May be repeated.",
            show_default="found by the backend's address and upstream_model",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML",
            help="Write the public prices to this new file, from which you can paste them into the "
            "settings.",
        ),
    ] = None,
) -> None:
    """Show the models whose prices differ from public prices.

    The prices in the settings are compared with the price list of the package genai-prices. The command
    does not change the settings."""
    settings = invocation.settings()
    names = dict(map(_pair, name or ()))
    for unknown in names.keys() - {model.id for model in settings.models}:
        raise NotFound(f"There is no model {unknown!r} in the catalogue.")
    price_review = review(settings, names)
    if output is not None:
        write_new_file(output, toml_text(price_review, settings.models))
    show_report(
        Report(_content(price_review, output), _picture(price_review, output)),
        as_json=invocation.as_json,
    )


def _pair(text: str) -> tuple[str, str]:
    model, equals, name = text.partition("=")
    if not (model and equals and "/" in name):
        raise typer.BadParameter(f"{text!r} is not MODEL=PROVIDER/NAME.", param_hint="--name")
    return model, name


def _content(price_review: PriceReview, output: Path | None) -> dict[str, Any]:
    return {
        "data": [
            {
                "model": difference.model,
                "listed_as": difference.listed_as,
                "setting": difference.setting,
                "declared": difference.declared,
                "listed": difference.listed,
                "problem": difference.problem or None,
            }
            for difference in price_review.differences
        ],
        "unknown": list(price_review.unknown),
        "output": None if output is None else str(output),
    }


def _picture(price_review: PriceReview, output: Path | None) -> RenderableType:
    parts: list[RenderableType] = []
    if price_review.differences:
        table = Table("model", "setting", "catalogue", "list", box=SIMPLE_HEAD, pad_edge=False)
        for difference in price_review.differences:
            problem = difference.problem
            listed = printable(difference.listed) + (f"  ({problem})" if problem else "")
            declared = difference.declared or "-"
            table.add_row(printable(difference.model), difference.setting, declared, Text(listed))
        parts.append(table)
    elif price_review.listed:
        parts.append(Text(f"Models that agree with the list: {len(price_review.listed)}."))
    if price_review.unknown:
        names = ", ".join(printable(model) for model in price_review.unknown)
        parts.append(
            Text(f"Not in the list: {names}. Give --name MODEL=PROVIDER/NAME.", style="yellow")
        )
    if output is not None:
        parts.append(Text(f"The prices were written to {output}. The settings were not changed."))
    return Group(*parts)
