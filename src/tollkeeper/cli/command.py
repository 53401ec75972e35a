"""How every command runs: its options, its settings, its one line of refusal, its answer.

A command is a function of what it needs and its own arguments; this file gives it the rest.
"""

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import typer

from tollkeeper.bootstrap import located_database, running_services
from tollkeeper.cli.answers import Answer, Listing, one_line, show
from tollkeeper.cli.options import (
    NURSERY,
    AsJson,
    ConfigFile,
    keep_shared_options,
    shared_options,
)
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.hosting.logs import silence_logs
from tollkeeper.hosting.worker_process import WorkerStarter
from tollkeeper.services.use_cases import Services
from tollkeeper.settings import Settings, SettingsError, load_settings
from tollkeeper.storage.schema import check_database

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command being run: what the shared options said."""

    config: Path | None
    as_json: bool
    # Of commands that serve.
    worker_starter: WorkerStarter | None = None

    def settings(self) -> Settings:
        return load_settings(self.config)


PlainCommand = Callable[Concatenate[Invocation, P], Answer | None]
ServiceCommand = Callable[Concatenate[Services, P], Awaitable[Answer]]


def command_app() -> typer.Typer:
    """For the file of a single command."""
    return typer.Typer(add_completion=False)


def noun_app(purpose: str) -> typer.Typer:
    """For the file of a noun with several verbs."""
    return typer.Typer(
        help=purpose, callback=keep_shared_options, no_args_is_help=True, add_completion=False
    )


def command(app: typer.Typer, name: str) -> Callable[[PlainCommand[P]], PlainCommand[P]]:
    """Registers a function that answers by itself, or runs for as long as it likes."""

    def register(run: PlainCommand[P]) -> PlainCommand[P]:
        def invoked(
            context: typer.Context, *, config: Path | None, as_json: bool, **arguments: Any
        ) -> None:
            options = shared_options(context).overlaid(config, as_json)
            invocation = Invocation(options.config, options.as_json, context.meta.get(NURSERY))
            # Commands that serve configure their logs themselves.
            silence_logs()
            try:
                # mypy cannot see that `arguments` are P's: the signature below says so to Typer.
                answer = run(invocation, **arguments)  # type: ignore[call-arg]
                if answer is not None:
                    show(answer, as_json=options.as_json)
            except TollkeeperError as exc:
                _refuse(exc.message)
            except SettingsError as exc:
                _refuse(str(exc))
            except BrokenPipeError:
                raise  # whoever read our output has gone: there is nobody to tell
            except OSError as exc:
                _refuse(f"{exc.filename or 'The system'}: {exc.strerror or exc}.")
            if isinstance(answer, Listing) and answer.refusal:
                _refuse(answer.refusal)

        invoked.__doc__ = run.__doc__
        invoked.__signature__ = _signature_with_shared_options(run)  # type: ignore[attr-defined]
        app.command(name)(invoked)
        return run

    return register


def service_command(
    app: typer.Typer, name: str
) -> Callable[[ServiceCommand[P]], ServiceCommand[P]]:
    """Registers a coroutine over the services: the same ones that answer the API."""

    def register(use_case: ServiceCommand[P]) -> ServiceCommand[P]:
        def run(invocation: Invocation, /, *arguments: P.args, **named: P.kwargs) -> Answer:
            return run_with_services(
                invocation, lambda services: use_case(services, *arguments, **named)
            )

        run.__doc__ = use_case.__doc__
        run.__signature__ = inspect.signature(use_case)  # type: ignore[attr-defined]
        command(app, name)(run)
        return use_case

    return register


def run_with_services(invocation: Invocation, use_case: Callable[[Services], Awaitable[T]]) -> T:
    """For a command that needs more than the services, or answers by itself."""
    # What a library would log, the one line of the refusal says.
    logging.disable(logging.CRITICAL)
    settings = invocation.settings()
    with located_database(settings) as conninfo:
        check_database(conninfo)
        return asyncio.run(_with_services(settings, conninfo, use_case))


async def _with_services(
    settings: Settings, conninfo: str, use_case: Callable[[Services], Awaitable[T]]
) -> T:
    async with running_services(settings, conninfo) as services:
        return await use_case(services)


def _signature_with_shared_options(run: Callable[..., object]) -> inspect.Signature:
    """The command's own parameters, without its first, which is ours to give."""
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
    raise typer.Exit(1)
