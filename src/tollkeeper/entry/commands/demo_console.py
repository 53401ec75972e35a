"""Runs the console as a child of `tollkeeper demo`. All starts use the operator token of the
first."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tollkeeper.http.listeners import bind
from tollkeeper.setup.settings import Settings

# Of the extra `tollkeeper[console]`. Without all of them, the demo has no console.
_REQUIRED_PACKAGES = (
    "authlib",
    "httpx2",
    "jinja2",
    "plotly",
    "python_multipart",
    "starlette",
    "uvicorn",
)
# Then the console is killed.
_STOP_S = 5.0
_TOKEN_FILE = "console-token"  # noqa: S105 - the name of a file


@dataclass(frozen=True, slots=True)
class DemoConsole:
    # Empty without the console's packages.
    address: str
    # Empty if the settings have a token's digest: only the operator knows that token.
    token: str


def console_listener(settings: Settings) -> socket.socket | None:
    """Before anything starts, so a port in use is reported at once. None without the console's
    packages."""
    if any(find_spec(name) is None for name in _REQUIRED_PACKAGES):
        return None
    return bind(settings.console.host, settings.console.port, setting="console")


@contextmanager
def running_console(
    settings: Settings, config: Path | None, listener: socket.socket | None
) -> Iterator[DemoConsole]:
    """Without a listener, starts nothing and yields empty texts."""
    if listener is None:
        yield DemoConsole("", "")
        return
    # Here, because the packages are optional.
    from tollkeeper.console.sessions import token_digest
    from tollkeeper.entry.commands.console import console_address

    token = "" if settings.console.token_sha256 else _demo_token(settings)
    environment = dict(os.environ)
    if token:
        environment["TOLLKEEPER_CONSOLE__TOKEN_SHA256"] = token_digest(token)
    config_option = () if config is None else ("--config", str(config))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tollkeeper", "console"),
            *("--child-socket", str(listener.fileno()), *config_option),
        ],
        env=environment,
        # The console exits when this closes, even if this process is killed.
        stdin=subprocess.PIPE,
        pass_fds=(listener.fileno(),),
        # Keeps Ctrl-C from the console, which this process stops after the gateway.
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
    """Stored by the first call in the data folder, in a file that only its owner can read."""
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
