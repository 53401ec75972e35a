"""Runs the program in a terminal of a given width."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

from tests.support.program import Outcome, Program

_TIMEOUT_S = 120
_ROWS = 40


def run_on_terminal(program: Program, *arguments: str, columns: int = 80) -> Outcome:
    """Runs a command whose standard output and standard error are the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    environment = {**program.process_environment(), "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        program.line(*arguments),
        cwd=program.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := _read(ours):
            shown += piece
        code = process.wait(_TIMEOUT_S)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return Outcome(code, shown.decode().replace("\r\n", "\n"), "")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # The program has closed the terminal.
        return b""
