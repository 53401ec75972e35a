"""The `allow-models` commands of projects and keys."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from tollkeeper.core.allowed_models import checked_entries, require_matches
from tollkeeper.entry.commands.command import Invocation, run_with_services
from tollkeeper.entry.commands.output import Record

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

Change = Callable[["Services", Sequence[str]], Awaitable[Mapping[str, Any]]]


def allow_models(
    invocation: Invocation, models: Sequence[str] | None, change: Change, *, every: bool
) -> Record:
    """`change` sets the list and returns the fields of the changed project or key. `every` removes
    it, so every model is allowed."""
    if bool(models) == every:
        raise typer.BadParameter("Give the models, or --every.")
    entries = models or ()
    checked_entries(entries)
    require_matches(entries, [model.id for model in invocation.settings().models])
    return Record(run_with_services(invocation, lambda services: change(services, entries)))
