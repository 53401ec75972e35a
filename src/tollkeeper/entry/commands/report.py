"""Commands with their own layout on a terminal, such as a chart."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import typer
from rich.console import RenderableType

from tollkeeper.core.errors import StateConflict
from tollkeeper.entry.commands.command import Invocation, command, run_with_services
from tollkeeper.entry.commands.output import Record, show, show_picture

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Report:
    """`content` is for `--json`. With a `refusal`, the command prints its output and then fails
    with it."""

    content: Mapping[str, Any]
    picture: RenderableType
    refusal: str = ""
    # Printed unchanged instead of the picture, unless empty.
    text: str = ""


ReportCommand = Callable[Concatenate["Services", P], Awaitable[Report]]


def report_command(
    app: typer.Typer, name: str, *, example: str
) -> Callable[[ReportCommand[P]], ReportCommand[P]]:
    """A coroutine function, which gets the `Services`."""

    def register(use_case: ReportCommand[P]) -> ReportCommand[P]:
        def run(invocation: Invocation, /, *arguments: P.args, **named: P.kwargs) -> None:
            report = run_with_services(
                invocation, lambda services: use_case(services, *arguments, **named)
            )
            show_report(report, as_json=invocation.as_json)
            if report.refusal:
                raise StateConflict(report.refusal)

        run.__doc__ = use_case.__doc__
        run.__signature__ = inspect.signature(use_case)  # type: ignore[attr-defined]
        command(app, name, example=example)(run)
        return use_case

    return register


def show_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        show(Record(report.content), as_json=True)
        return
    if report.text:
        sys.stdout.write(report.text)
        return
    show_picture(report.picture)
