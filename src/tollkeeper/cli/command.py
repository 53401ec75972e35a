"""Runs every command: reads the shared options and the settings, and prints the answer or one line
about the failure.

The first parameter of a command is an `Invocation` or the services. The wrappers here supply it.
"""

import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import typer

from tollkeeper.cli.database import check_newest_server, command_database
from tollkeeper.cli.options import (
    WORKER_STARTER,
    AsJson,
    ConfigFile,
    keep_shared_options,
    shared_options,
)
from tollkeeper.cli.output import CommandOutput, Listing, one_line, show
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.runtime.late_log import silence_logs
from tollkeeper.services.use_cases import Services

# Help does not need these imports.
if TYPE_CHECKING:
    from tollkeeper.hosting.worker_process import WorkerStarter
    from tollkeeper.settings import Settings, SettingsError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Invocation:
    """Holds the shared options of the running command."""

    config: Path | None
    as_json: bool
    # Set only for commands that serve.
    worker_starter: "WorkerStarter | None" = None

    def settings(self) -> "Settings":
        from tollkeeper.settings import load_settings

        return load_settings(self.config)

    def located(self, error: "SettingsError") -> str:
        """Returns the error's message with the line of the setting."""
        from tollkeeper.settings import settings_source

        return settings_source(self.config).located(error) if error.at else str(error)


PlainCommand = Callable[Concatenate[Invocation, P], CommandOutput | None]
ServiceCommand = Callable[Concatenate[Services, P], Awaitable[CommandOutput]]


def command_app() -> typer.Typer:
    """Creates the Typer application of a file with a single command."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def noun_app(purpose: str) -> typer.Typer:
    """Creates the Typer application of a file with one noun and several verbs."""
    return typer.Typer(
        help=purpose,
        callback=keep_shared_options,
        no_args_is_help=True,
        add_completion=False,
        # Importing the library that draws boxes takes longer than most commands run.
        rich_markup_mode=None,
    )


def command(
    app: typer.Typer, name: str, *, example: str
) -> Callable[[PlainCommand[P]], PlainCommand[P]]:
    """Registers a function that takes an `Invocation`. It may return an answer, or None if it
    printed its own output. The help shows `example`, a line that can be typed."""

    def register(run: PlainCommand[P]) -> PlainCommand[P]:
        def invoked(
            context: typer.Context, *, config: Path | None, as_json: bool, **arguments: Any
        ) -> None:
            from tollkeeper.settings import SettingsError

            options = shared_options(context).overlaid(config, as_json)
            invocation = Invocation(
                options.config, options.as_json, context.meta.get(WORKER_STARTER)
            )
            # Commands that serve configure their logs themselves.
            silence_logs()
            try:
                # Typer passes the arguments of P, because of `__signature__`; mypy cannot know.
                answer = run(invocation, **arguments)  # type: ignore[call-arg]
                if answer is not None:
                    show(answer, as_json=options.as_json)
            except TollkeeperError as exc:
                _refuse(exc.message)
            except SettingsError as exc:
                _refuse(invocation.located(exc))
            except BrokenPipeError:
                raise  # The reader of our output has gone, so no message can be printed.
            except OSError as exc:
                _refuse(f"{exc.filename or 'The system'}: {exc.strerror or exc}.")
            if isinstance(answer, Listing) and answer.refusal:
                _refuse(answer.refusal)

        invoked.__doc__ = run.__doc__
        invoked.__signature__ = _signature_with_shared_options(run)  # type: ignore[attr-defined]
        app.command(name, epilog=f"Example: {example}")(invoked)
        return run

    return register


def service_command(
    app: typer.Typer, name: str, *, example: str
) -> Callable[[ServiceCommand[P]], ServiceCommand[P]]:
    """Registers a coroutine function that takes the services."""

    def register(use_case: ServiceCommand[P]) -> ServiceCommand[P]:
        def run(invocation: Invocation, /, *arguments: P.args, **named: P.kwargs) -> CommandOutput:
            return run_with_services(
                invocation, lambda services: use_case(services, *arguments, **named)
            )

        run.__doc__ = use_case.__doc__
        run.__signature__ = inspect.signature(use_case)  # type: ignore[attr-defined]
        command(app, name, example=example)(run)
        return use_case

    return register


def run_with_services(invocation: Invocation, use_case: Callable[[Services], Awaitable[T]]) -> T:
    """Runs a use case for a command that needs more than the services or prints its own answer."""
    import asyncio

    # The line that reports the failure replaces log lines of libraries.
    logging.disable(logging.CRITICAL)
    settings = invocation.settings()
    with command_database(settings) as conninfo:
        check_newest_server(settings, conninfo)
        return asyncio.run(_with_services(settings, conninfo, use_case))


async def _with_services(
    settings: "Settings", conninfo: str, use_case: Callable[[Services], Awaitable[T]]
) -> T:
    from tollkeeper.bootstrap import command_services
    from tollkeeper.domain.audit import Actor, ActorKind
    from tollkeeper.services.audit import act_as

    act_as(Actor(ActorKind.CLI, _user()))
    async with command_services(settings, conninfo) as services:
        return await use_case(services)


def _user() -> str:
    """Returns the shell user's name for the audit, also behind sudo."""
    import getpass

    behind_sudo = os.environ.get("SUDO_USER")
    if behind_sudo:
        return behind_sudo
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the account has no name on this machine
        return f"uid {os.getuid()}"


def _signature_with_shared_options(run: Callable[..., object]) -> inspect.Signature:
    """Returns the command's parameters without the first, which `command` supplies, and with the
    shared options."""
    keyword, positional = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    _, *own = inspect.signature(run).parameters.values()
    return inspect.Signature(
        [
            inspect.Parameter("context", positional, annotation=typer.Context),
            *own,
            inspect.Parameter("config", keyword, annotation=ConfigFile, default=None),
            inspect.Parameter("as_json", keyword, annotation=AsJson, default=False),
        ]
    )


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"tollkeeper: {one_line(message)}\n")
    hint = next_step(message)
    if hint and sys.stderr.isatty():
        sys.stderr.write(f"{hint}\n")
    raise typer.Exit(1)


# What a person can do about a refusal, in one more line on a terminal.
_HINTS = (
    ("There is no organization ", "List them: tollkeeper organization list"),
    ("There is no project key ", "List them: tollkeeper project-key list PROJECT"),
    ("There is no project ", "List them: tollkeeper project list ORG"),
    ("There is no admin key ", "List them: tollkeeper admin-key list ORG"),
    ("There is no policy ", "List them: tollkeeper policy list ORG"),
    ("There is no request ", "List the newest: tollkeeper activity list"),
    ("There is no reservation ", "List unsettled calls: tollkeeper ledger unsettled"),
    ("The database cannot be reached", "Check it: tollkeeper doctor"),
    ("The settings file ", "Write one to start from: tollkeeper init"),
    ("The books are wrong", "Keep a copy of the database before you change anything."),
    ("No gateway serves", "Start one: tollkeeper serve"),
    ("judge: no judge is configured", "Name one under [judge] in the settings file."),
)


def next_step(message: str) -> str:
    """Returns "" if the message itself says what to do."""
    return next((hint for beginning, hint in _HINTS if message.startswith(beginning)), "")
