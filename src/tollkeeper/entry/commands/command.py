"""Runs every command: reads shared options and settings, and prints the output or one line about
the failure. A command function's first parameter is an `Invocation` or the `Services`, which the
decorators here pass."""

import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import typer

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.runtime.late_log import silence_logs
from tollkeeper.core.runtime.output import log_output
from tollkeeper.entry.commands.database import check_newest_server, command_database
from tollkeeper.entry.commands.options import (
    WORKER_STARTER,
    AsJson,
    ConfigFile,
    keep_shared_options,
    shared_options,
)
from tollkeeper.entry.commands.output import CommandOutput, Listing, one_line, show

# Not at run time, because `--help` must be fast.
if TYPE_CHECKING:
    from tollkeeper.entry.worker_process import WorkerStarter
    from tollkeeper.setup.services import Services
    from tollkeeper.setup.settings import Settings, SettingsError

P = ParamSpec("P")
T = TypeVar("T")
# How long a failed command waits for whoever reads its error.
_ERROR_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Invocation:
    """The shared options, for one run."""

    config: Path | None
    as_json: bool
    # Only for `serve` and `demo`.
    worker_starter: "WorkerStarter | None" = None
    # May create the embedded database without a settings file.
    begins: bool = False

    def settings(self) -> "Settings":
        """Without a file: built-in settings, with the embedded database in the current folder.
        Raises SettingsError if it would have to be created: the user is probably in the wrong
        folder."""
        from tollkeeper.setup.embedded.postgres_places import has_cluster
        from tollkeeper.setup.settings import (
            FILE_NAME,
            SettingsError,
            configured_path,
            load_settings,
        )

        settings = load_settings(self.config)
        if self.begins or self.config is not None or configured_path() is not None:
            return settings
        if settings.database.url or has_cluster(settings.database.data_dir):
            return settings
        raise SettingsError(
            f"There is no settings file {Path.cwd() / FILE_NAME}, and neither --config nor "
            "$TOLLKEEPER_CONFIG names another one."
        )

    def located(self, error: "SettingsError") -> str:
        """The error with the setting's line in the file, or its environment variable."""
        from tollkeeper.setup.settings import settings_source

        return settings_source(self.config).located(error) if error.at else str(error)


PlainCommand = Callable[Concatenate[Invocation, P], CommandOutput | None]
ServiceCommand = Callable[Concatenate["Services", P], Awaitable[CommandOutput]]


def command_app() -> typer.Typer:
    """For a module with a single command."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def noun_app(purpose: str) -> typer.Typer:
    """A group of commands, such as `project`. `purpose` is its help text."""
    return typer.Typer(
        help=purpose,
        callback=keep_shared_options,
        no_args_is_help=True,
        add_completion=False,
        # rich takes longer to import than most commands run.
        rich_markup_mode=None,
    )


def command(
    app: typer.Typer, name: str, *, example: str, begins: bool = False
) -> Callable[[PlainCommand[P]], PlainCommand[P]]:
    """The function takes an `Invocation` and returns the output, or None if it has printed it. Help
    shows `example`, a complete command line. `begins`: see `Invocation.begins`."""

    def register(run: PlainCommand[P]) -> PlainCommand[P]:
        def invoked(
            context: typer.Context, *, config: Path | None, as_json: bool, **arguments: Any
        ) -> None:
            from tollkeeper.setup.settings import SettingsError

            options = shared_options(context).overlaid(config, as_json)
            invocation = Invocation(
                options.config, options.as_json, context.meta.get(WORKER_STARTER), begins
            )
            # A failure is one line. `serve`, `demo` and `console` enable logs later.
            silence_logs()
            try:
                # Typer reads `__signature__` and so passes P's arguments; mypy
                # can't know.
                output = run(invocation, **arguments)  # type: ignore[call-arg]
                if output is not None:
                    show(output, as_json=options.as_json)
            except TollkeeperError as exc:
                _fail(exc.message)
            except SettingsError as exc:
                _fail(invocation.located(exc))
            except BrokenPipeError:
                raise  # The reader of the pipe has closed it, so no message can be printed.
            except OSError as exc:
                _fail(f"{exc.filename or 'The system'}: {exc.strerror or exc}.")
            # A failed check fails the command, though `show` has printed it all.
            if isinstance(output, Listing) and output.refusal:
                _fail(output.refusal)

        invoked.__doc__ = run.__doc__
        invoked.__signature__ = _signature_with_shared_options(run)  # type: ignore[attr-defined]
        app.command(name, epilog=f"Example: {example}")(invoked)
        return run

    return register


def service_command(
    app: typer.Typer, name: str, *, example: str
) -> Callable[[ServiceCommand[P]], ServiceCommand[P]]:
    """A coroutine function, which takes the `Services`."""

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


def run_with_services(invocation: Invocation, use_case: Callable[["Services"], Awaitable[T]]) -> T:
    """For `service_command`, and commands that take an `Invocation`."""
    import asyncio

    # No log lines of libraries beside the one about a failure.
    logging.disable(logging.CRITICAL)
    settings = invocation.settings()
    with command_database(settings) as conninfo:
        check_newest_server(settings, conninfo)
        return asyncio.run(_with_services(settings, conninfo, use_case))


async def _with_services(
    settings: "Settings", conninfo: str, use_case: Callable[["Services"], Awaitable[T]]
) -> T:
    from tollkeeper.setup import command_services
    from tollkeeper.tenants.audit.rule import Actor, ActorKind
    from tollkeeper.tenants.audit.service import act_as

    act_as(Actor(ActorKind.CLI, _user()))
    async with command_services(settings, conninfo) as services:
        return await use_case(services)


def _user() -> str:
    """For the audit. Under sudo, the user who called it."""
    import getpass

    sudo_user = os.environ.get("SUDO_USER")
    if sudo_user:
        return sudo_user
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # The machine has no user name for this user id.
        return f"uid {os.getuid()}"


def _signature_with_shared_options(run: Callable[..., object]) -> inspect.Signature:
    """What Typer reads: its context, `run`'s parameters without the first (from `command`), and the
    shared options `config` and `as_json`."""
    keyword, positional = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    _, *run_parameters = inspect.signature(run).parameters.values()
    return inspect.Signature(
        [
            inspect.Parameter("context", positional, annotation=typer.Context),
            *run_parameters,
            inspect.Parameter("config", keyword, annotation=ConfigFile, default=None),
            inspect.Parameter("as_json", keyword, annotation=AsJson, default=False),
        ]
    )


def _fail(message: str) -> NoReturn:
    log_output.write_line(f"tollkeeper: {one_line(message)}")
    hint = next_step(message)
    if hint and sys.stderr.isatty():
        log_output.write_line(hint)
    log_output.flush(_ERROR_WITHIN_S)
    raise typer.Exit(1)


# By the beginning of an error message: what to do next.
_HINTS = (
    ("There is no organization ", "List the organizations: tollkeeper organization list"),
    ("There is no project key ", "List the keys: tollkeeper project-key list PROJECT"),
    ("There is no project ", "List the projects: tollkeeper project list ORG"),
    ("There is no admin key ", "List the keys: tollkeeper admin-key list ORG"),
    ("There is no policy ", "List the policies: tollkeeper policy list ORG"),
    ("There is no request ", "List the newest requests: tollkeeper activity list"),
    ("There is no reservation ", "List unsettled calls: tollkeeper ledger unsettled"),
    ("The database cannot be reached", "Check the database: tollkeeper doctor"),
    ("The settings file ", "Write a new settings file: tollkeeper init"),
    ("There is no settings file ", "Go to the folder of tollkeeper.toml, or run: tollkeeper init"),
    ("The ledger is wrong", "Keep a copy of the database before you change anything."),
    ("No gateway serves", "Start a gateway: tollkeeper serve"),
    ("judge: no judge is configured", "Declare a judge under [judge] in the settings file."),
)


def next_step(message: str) -> str:
    return next((hint for beginning, hint in _HINTS if message.startswith(beginning)), "")
