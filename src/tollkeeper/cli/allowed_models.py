"""Lists of models on the command line."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import typer

from tollkeeper.cli.command import Invocation, run_with_services
from tollkeeper.cli.output import Record
from tollkeeper.domain.allowed_models import unmatched
from tollkeeper.services.use_cases import Services

Change = Callable[[Services, Sequence[str]], Awaitable[Mapping[str, Any]]]


def allow_models(
    invocation: Invocation, models: Sequence[str] | None, change: Change, *, every: bool
) -> Record:
    """Set the list of a project or key: `change` writes the entries and returns the changed object. Add
    the entries that match no model of the settings. Removing a list has to be asked for."""
    if bool(models) == every:
        raise typer.BadParameter("Give the models, or --every.")
    entries = models or ()
    fields = run_with_services(invocation, lambda services: change(services, entries))
    without = unmatched(entries, [model.id for model in invocation.settings().models])
    note = f"No model of the settings matches: {', '.join(without)}." if without else ""
    return Record({**fields, "unmatched_models": without}, note=note)
