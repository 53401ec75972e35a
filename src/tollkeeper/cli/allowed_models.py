"""Lists of models on the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from tollkeeper.cli.command import Invocation
from tollkeeper.cli.output import Record
from tollkeeper.domain.allowed_models import unmatched


def allowed_entries(models: Sequence[str] | None, *, every: bool) -> Sequence[str]:
    """Return the entries of the new list. Removing a list has to be asked for."""
    if bool(models) == every:
        raise typer.BadParameter("Give the models, or --every.")
    return models or ()


def allowed_record(
    invocation: Invocation, fields: Mapping[str, Any], entries: Sequence[str]
) -> Record:
    """Return the changed object, with the entries that match no model of the settings."""
    without = unmatched(entries, [model.id for model in invocation.settings().models])
    note = f"No model of the settings matches: {', '.join(without)}." if without else ""
    return Record({**fields, "unmatched_models": without}, note=note)
