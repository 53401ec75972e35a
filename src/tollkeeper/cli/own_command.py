"""Finds the command that calls this program from the user's shell, for lines that users paste."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "tollkeeper"


def pasted_command(config: Path | None) -> str:
    """Returns the shortest command that calls this program with the same settings file."""
    installed = Path(sys.executable).parent / _NAME
    found = shutil.which(_NAME)
    if found is not None and installed.exists() and Path(found).samefile(installed):
        words = [_NAME]
    elif installed.exists():
        words = [_shortest_path(installed)]
    else:
        words = [_shortest_path(Path(sys.executable)), "-m", _NAME]
    if config is not None:
        words += ["--config", str(config)]
    return shlex.join(words)


def _shortest_path(path: Path) -> str:
    """Returns the path relative to the current folder if it is below it, otherwise unchanged."""
    # Do not resolve a virtual environment's program: it is a link.
    folder = Path(os.path.abspath(os.curdir))  # noqa: PTH100
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
