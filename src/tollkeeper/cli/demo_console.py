"""The console as a child process of `tollkeeper demo`, with an operator token that is made once."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tollkeeper.hosting.listeners import bind
from tollkeeper.settings import Settings

# The extra's packages; without one of them the demo runs without a console.
_NEEDED = ("authlib", "httpx2", "jinja2", "plotly", "python_multipart", "starlette", "uvicorn")
_STOP_S = 5.0
_TOKEN_FILE = "console-token"  # noqa: S105 - the name of a file


@dataclass(frozen=True, slots=True)
class DemoConsole:
    # Empty where the console's packages are not installed.
    address: str
    # Empty where the settings name a token: only its owner knows it.
    token: str


def console_listener(settings: Settings) -> socket.socket | None:
    """Bound before anything is started, so that a port in use is reported at once."""
    if any(find_spec(name) is None for name in _NEEDED):
        return None
    return bind(settings.console.host, settings.console.port, setting="console")


@contextmanager
def running_console(
    settings: Settings, config: Path | None, listener: socket.socket | None
) -> Iterator[DemoConsole]:
    if listener is None:
        yield DemoConsole("", "")
        return
    # Its libraries are an extra, which the other commands do without.
    from tollkeeper.cli.console import console_address
    from tollkeeper.console.sessions import token_digest

    token = "" if settings.console.token_sha256 else _demo_token(settings)
    environment = dict(os.environ)
    if token:
        environment["TOLLKEEPER_CONSOLE__TOKEN_SHA256"] = token_digest(token)
    chosen = () if config is None else ("--config", str(config))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tollkeeper", "console"),
            *("--child-socket", str(listener.fileno()), *chosen),
        ],
        env=environment,
        # The child ends when this end of the pipe is closed, however this process ends.
        stdin=subprocess.PIPE,
        pass_fds=(listener.fileno(),),
        # Ctrl-C reaches this process, which stops the child when it has stopped the gateway.
        start_new_session=True,
    )
    try:
        yield DemoConsole(console_address(settings, listener), token)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _demo_token(settings: Settings) -> str:
    """Made once, and kept in the data folder, readable by the owner only."""
    from tollkeeper.console.sessions import new_token

    path = settings.database.data_dir / _TOKEN_FILE
    if path.exists():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    token = new_token()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return token
