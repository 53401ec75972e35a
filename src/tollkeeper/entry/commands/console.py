"""`tollkeeper console`: runs the web console until a signal."""

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from tollkeeper.console.context import Finding, MachineChecks, ProbedReplica
from tollkeeper.console.sessions import new_token, token_digest
from tollkeeper.console.start import require_safe_address, run_console
from tollkeeper.entry.commands.alert import alerts_of_gateway
from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.database import check_newest_server, command_database
from tollkeeper.entry.commands.doctor import examine
from tollkeeper.entry.commands.event_loop import run_in_loop
from tollkeeper.entry.commands.output import SHOWN_ONCE, Record, show
from tollkeeper.entry.descriptors import connections_within, raise_limit, soft_limit
from tollkeeper.entry.logs import configure_logs
from tollkeeper.entry.replica_probe import probe_replicas
from tollkeeper.entry.stop_signals import take_signals
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.reports.alerts.rule import StandingAlert
from tollkeeper.setup.settings import Settings

app = command_app()


@command(app, "console", example="tollkeeper console --port 8090")
def console(
    invocation: Invocation,
    host: Annotated[
        str | None, typer.Option(help="Listen on this address.", show_default="console.host")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Listen on this port; 0 means any free port.", show_default="console.port"
        ),
    ] = None,
    print_token: Annotated[
        bool,
        typer.Option(
            "--new-token",
            help="Create an operator token, print the token and its digest, and exit.",
        ),
    ] = False,
    # From `demo`: the descriptor of the inherited listening socket.
    child_socket: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> Record | None:
    """Run the web console, or create an operator token.

    Operators sign in to the console with an operator token."""
    if print_token:
        created_token = new_token()
        return Record(
            {"value": created_token, "token_sha256": token_digest(created_token)}, note=SHOWN_ONCE
        )
    # As environment variables, they're checked like settings.
    for name, value in (("HOST", host), ("PORT", port)):
        if value is not None:
            os.environ[f"TOLLKEEPER_CONSOLE__{name}"] = str(value)
    settings = invocation.settings()
    require_safe_address(settings)
    with ExitStack() as stack:
        listener = _listener(settings, child_socket)
        stack.callback(listener.close)
        configure_logs()
        raise_limit()
        conninfo = stack.enter_context(command_database(settings))
        check_newest_server(settings, conninfo)
        token = None if settings.console.token_sha256 else new_token()
        digest = settings.console.token_sha256 or token_digest(token or "")
        if child_socket is None:
            _announce(invocation, settings, listener, token)
            sys.stdout.flush()

        else:
            _end_with_parent()
        run_in_loop(
            lambda: run_console(
                settings,
                conninfo,
                listener,
                digest,
                config=invocation.config,
                machine=_machine_checks(invocation, settings),
                take_signals=take_signals,
                connections_max=connections_within(soft_limit()),
            )
        )
    return None


def _listener(settings: Settings, inherited: int | None) -> socket.socket:
    if inherited is not None:
        return socket.socket(fileno=inherited)
    return bind(settings.console.host, settings.console.port, setting="console")


def _announce(
    invocation: Invocation, settings: Settings, listener: socket.socket, token: str | None
) -> None:
    address = console_address(settings, listener)
    if invocation.as_json:
        show(Record({"console": address, "operator_token": token}), as_json=True)
        return
    typer.echo(f"The console is at {address}. Ctrl-C stops it.")
    if token is not None:
        typer.echo(
            f"operator token  {token}  (until the next start; --new-token creates a permanent token)"
        )


def console_address(settings: Settings, listener: socket.socket) -> str:
    scheme = "https" if settings.console.tls_files else "http"
    return f"{scheme}://{address_of(listener)}"


def _end_with_parent() -> None:
    """The demo's end closes the pipe at standard input."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _machine_checks(invocation: Invocation, settings: Settings) -> MachineChecks:
    async def gateway_alerts() -> list[StandingAlert]:
        return await alerts_of_gateway(settings) or []

    async def doctor() -> list[Finding]:
        # `examine` blocks on the database.
        return [Finding(*finding) for finding in await asyncio.to_thread(examine, invocation)]

    return MachineChecks(lambda: _replicas(settings), gateway_alerts, doctor)


async def _replicas(settings: Settings) -> list[ProbedReplica]:
    return [
        ProbedReplica(probed.backend, probed.url, probed.result.ok, probed.result.detail)
        for probed in await probe_replicas(settings)
    ]
