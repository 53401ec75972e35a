"""The program `tollkeeper`. A command's module is imported only when it's called, so `--help` is
fast."""

import importlib
import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

import tollkeeper
from tollkeeper.entry.commands.options import (
    WORKER_STARTER,
    AsJson,
    ConfigFile,
    keep_shared_options,
)
from tollkeeper.entry.stop_signals import exit_on_sigterm, exit_server_on_signals

_USAGE_ERROR = 2

# Name, module in this folder and purpose, which help cuts after 60 characters.
_COMMANDS = (
    ("demo", "demo", "Run gateway, console and database with a demo organization."),
    ("init", "init", "Write a settings file, tollkeeper.toml, with comments."),
    ("migrate", "migrate", "Create or update the database schema."),
    ("database", "database_accept", "Change the PostgreSQL server that gateways use."),
    ("serve", "serve", "Run the gateway and its operator listener."),
    ("console", "console", "Run the web console for operators."),
    ("reload", "reload", "Make the running gateway read its models and prices again."),
    ("doctor", "doctor", "Check settings, database, backends and policy judge."),
    ("backend", "backend", "Test a backend with real calls."),
    ("openapi", "openapi", "Print the OpenAPI document of the HTTP API."),
    ("model", "model", "Compare the configured models with public prices."),
    ("organization", "organization", "Manage organizations, the tenants that pay for calls."),
    ("project", "project", "Manage the projects of an organization."),
    ("admin-key", "admin_key", "Manage the Admin API keys of an organization."),
    ("project-key", "project_key", "Manage the API keys of a project."),
    ("policy", "policy", "Manage policies, which judge requests and answers."),
    ("credit", "credit", "Grant, withdraw and show an organization's credit."),
    ("cap", "cap", "Set and show spending caps."),
    ("overage", "overage", "Limit how far an organization's balance may fall below 0."),
    ("limit", "limit", "Set and show the request limits of a project."),
    ("costs", "costs", "Show an organization's costs, day by day."),
    ("statement", "statement", "Show an organization's statement for a month."),
    ("ledger", "ledger", "Verify the ledger, resolve unsettled calls, close months."),
    ("activity", "activity", "Show and export the records of inference requests."),
    ("alert", "alert", "List the current alerts."),
    ("audit", "audit", "List who changed which object, and when."),
)
_MODULES = {name: file for name, file, _ in _COMMANDS}
_GATEWAY_COMMANDS = ("serve", "demo")
_SERVER_COMMANDS = (*_GATEWAY_COMMANDS, "console")


class CommandsOnDemand(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, placeholder, rest
        if name in _SERVER_COMMANDS:
            exit_server_on_signals()
        # Resilient parsing is a shell's completion, which mustn't start a process.
        if name in _GATEWAY_COMMANDS and "--help" not in rest and not ctx.resilient_parsing:
            from tollkeeper.entry.worker_process import worker_starter

            if name == "demo":
                typer.echo("Starting tollkeeper ...", err=True)
            # Before the slow imports below, so that worker and this process import at
            # the same time.
            ctx.meta[WORKER_STARTER] = ctx.with_resource(worker_starter())
        module = importlib.import_module(f"tollkeeper.entry.commands.{_MODULES[name]}")
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
    help="Run and administer an inference gateway with exact accounting.",
    epilog="Show the help of a command: tollkeeper credit grant --help",
    callback=_program,
    no_args_is_help=True,
    rich_markup_mode=None,
    # They show local variables, which could contain a secret.
    pretty_exceptions_enable=False,
)
for _name, _, _purpose in _COMMANDS:
    app.add_typer(typer.Typer(), name=_name, help=_purpose)


def main() -> None:
    # SIGTERM must unwind the stack to stop the embedded database.
    exit_on_sigterm()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for argument in sys.argv[1:]:
        if not _is_text(argument):
            sys.stderr.write(f"tollkeeper: the argument {argument!r} is not UTF-8.\n")
            sys.exit(_USAGE_ERROR)
    app(prog_name="tollkeeper")


def _is_text(argument: str) -> bool:
    """In UTF-8. Python decodes other bytes to surrogates, which can't be encoded."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True
