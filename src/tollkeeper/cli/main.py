"""Defines the program `tollkeeper` and lists its commands.

A command's module is imported when the command is called, so that `--help` is fast.
"""

import importlib
import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

import tollkeeper
from tollkeeper.cli.options import WORKER_STARTER, AsJson, ConfigFile, keep_shared_options
from tollkeeper.hosting.stop_signals import exit_on_sigterm, exit_server_on_signals

_USAGE_ERROR = 2

# Name, module in this folder and purpose of each command or command group.
_COMMANDS = (
    ("demo", "demo", "Run everything on this machine, with a demo organization."),
    ("init", "init", "Write a commented tollkeeper.toml."),
    ("migrate", "migrate", "Bring the database's schema up to date."),
    ("database", "database_accept", "The PostgreSQL server that gateways use."),
    ("serve", "serve", "Run the gateway and its operator listener."),
    ("console", "console", "Run the web console."),
    ("reload", "reload", "Send a changed catalogue to the running gateway."),
    ("doctor", "doctor", "Check settings, database, backends and judge."),
    ("backend", "backend", "Try a backend with real calls."),
    ("openapi", "openapi", "Print the OpenAPI document of the API."),
    ("model", "model", "Compare the models with public prices."),
    ("organization", "organization", "Organizations and the checks they hold."),
    ("project", "project", "Projects of an organization."),
    ("admin-key", "admin_key", "Admin API keys of an organization."),
    ("project-key", "project_key", "API keys of a project."),
    ("policy", "policy", "Policies of an organization."),
    ("credit", "credit", "Credit of an organization."),
    ("cap", "cap", "Spending caps of organizations, projects and keys."),
    ("overage", "overage", "How far an organization's balance may fall below zero."),
    ("limit", "limit", "Request limits of a project."),
    ("costs", "costs", "What an organization spent, day by day."),
    ("statement", "statement", "An organization's statement for a month."),
    ("ledger", "ledger", "The ledger: its invariants, unsettled holds, and months."),
    ("activity", "activity", "The records of inference requests."),
    ("alert", "alert", "Current alerts."),
    ("audit", "audit", "Who changed what, and when."),
)
_MODULES = {name: file for name, file, _ in _COMMANDS}
_GATEWAYS = ("serve", "demo")
_SERVERS = (*_GATEWAYS, "console")


class CommandsOnDemand(TyperGroup):
    """Lists every command, and imports only the module of the called one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, placeholder, rest
        if name in _SERVERS:
            exit_server_on_signals()
        # A shell that asks for completions (resilient parsing) must not start anything.
        if name in _GATEWAYS and "--help" not in rest and not ctx.resilient_parsing:
            from tollkeeper.hosting.worker_process import worker_starter

            if name == "demo":
                typer.echo("Starting tollkeeper ...", err=True)
            # Start the starter before the slow imports below, so that the first worker imports in
            # parallel.
            ctx.meta[WORKER_STARTER] = ctx.with_resource(worker_starter())
        module = importlib.import_module(f"tollkeeper.cli.{_MODULES[name]}")
        return name, get_command(module.app), rest


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tollkeeper {tollkeeper.__version__}")
        raise typer.Exit


def _program(
    context: typer.Context,
    config: ConfigFile = None,
    as_json: AsJson = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    keep_shared_options(context, config, as_json)


app = typer.Typer(
    name="tollkeeper",
    cls=CommandsOnDemand,
    help="An inference gateway that keeps exact accounts.",
    epilog="Every command explains itself: tollkeeper credit grant --help",
    callback=_program,
    no_args_is_help=True,
    rich_markup_mode=None,
    # Tracebacks with local variables could show a secret.
    pretty_exceptions_enable=False,
)
for _name, _, _purpose in _COMMANDS:
    app.add_typer(typer.Typer(), name=_name, help=_purpose)


def main() -> None:
    # SIGTERM must unwind the stack, so that the command stops the embedded database.
    exit_on_sigterm()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for argument in sys.argv[1:]:
        if not _is_text(argument):
            sys.stderr.write(f"tollkeeper: the argument {argument!r} is not UTF-8.\n")
            sys.exit(_USAGE_ERROR)
    app(prog_name="tollkeeper")


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True
