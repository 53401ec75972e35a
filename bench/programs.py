"""Runs the program of another gateway with a separate environment."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STOP_WITHIN_S = 20
_REASON_LENGTH_MAX = 200


@contextmanager
def started(
    command: list[str | Path], folder: Path, environment: dict[str, str], end: int = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a separate process group until the context ends, and stop it with the signal `end`.
    The program inherits only PATH from our environment. The file `output` gets its output."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    with (
        (folder / "output").open("ab") as output,
        subprocess.Popen(
            command,
            env=variables,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            _stop(process, end)


def _stop(process: subprocess.Popen[bytes], end: int) -> None:
    """Stop a program, which may be paused or may have ended."""
    for number in (end, signal.SIGCONT):
        _signal_group(process, number)
    try:
        process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def last_output_line(folder: Path) -> str:
    """Return the last line of a program's output, which probably says why the program did not start."""
    lines = (folder / "output").read_text(errors="replace").split("\n")
    output = [line.strip() for line in lines if line.strip()]
    return output[-1][:_REASON_LENGTH_MAX] if output else "it does not answer, and says nothing"
