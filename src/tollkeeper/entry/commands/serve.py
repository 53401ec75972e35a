"""`tollkeeper serve`: runs the gateway and its operator listener until a signal."""

import json
import os
import socket
import sys
from contextlib import ExitStack
from typing import Annotated

import structlog
import typer

from tollkeeper.core.runtime.output import standard_output
from tollkeeper.entry.commands.command import Invocation, command, command_app
from tollkeeper.entry.commands.database import check_newest_server, command_database
from tollkeeper.entry.commands.event_loop import run_in_loop
from tollkeeper.entry.logs import configure_logs
from tollkeeper.entry.supervisor import Supervisor, describe
from tollkeeper.http.listeners import bind
from tollkeeper.setup import check_settings, master_secret
from tollkeeper.setup.settings import Settings

app = command_app()
_log = structlog.get_logger("tollkeeper.serve")


@command(app, "serve", example="tollkeeper serve --port 8080 --workers 4", begins=True)
def serve(
    invocation: Invocation,
    host: Annotated[
        str | None,
        typer.Option(help="Serve the public API on this address.", show_default="server.host"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Serve the public API on this port; 0 means any free port.",
            show_default="server.port",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Run this number of worker processes.", show_default="server.workers"),
    ] = None,
) -> None:
    """Run the gateway and its operator listener.

    The operator listener serves health checks, alerts and metrics."""
    # As environment variables, they're checked like settings, and apply when those are read
    # again.
    for name, value in (("HOST", host), ("PORT", port), ("WORKERS", workers)):
        if value is not None:
            os.environ[f"TOLLKEEPER_SERVER__{name}"] = str(value)
    settings = invocation.settings()
    check_settings(settings)
    with ExitStack() as stack:
        public, operator = listeners(settings, stack)
        configure_logs()
        conninfo = stack.enter_context(command_database(settings))
        master_secret(settings)
        check_newest_server(settings, conninfo, before_serving=True)
        run_in_loop(lambda: _supervise(invocation, settings, conninfo, public, operator))


async def _supervise(
    invocation: Invocation,
    settings: Settings,
    conninfo: str,
    public: socket.socket,
    operator: socket.socket,
) -> None:
    addresses = describe(public, operator)

    def on_ready() -> None:
        text = (
            f"tollkeeper serves at {addresses['public']} "
            f"(operators: {addresses['operator']}). Ctrl-C stops it."
        )
        if invocation.as_json or not sys.stdout.isatty():
            # Like a line of the log, which is often in the same file.
            text = json.dumps({"event": "serving", **addresses})
        standard_output.write_line(text)

    assert invocation.worker_starter is not None
    supervisor = Supervisor(
        settings,
        conninfo,
        public=public,
        operator=operator,
        reload=invocation.settings,
        worker_starter=invocation.worker_starter,
        on_stop=lambda: tell_stopping(settings),
    )
    await supervisor.run(on_ready=on_ready)
    _log.info("stopped")


def tell_stopping(settings: Settings) -> None:
    """Why the program doesn't end at once after Ctrl-C or SIGTERM."""
    _log.info(f"stopping: open requests have up to {settings.server.grace_s:g} s to end")


def listeners(settings: Settings, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Public and operator socket. Bound before anything starts, so a port in use is reported at
    once."""
    public = bind(settings.server.host, settings.server.port, setting="server")
    stack.callback(public.close)
    operator = bind(settings.operator.host, settings.operator.port, setting="operator")
    stack.callback(operator.close)
    return public, operator
