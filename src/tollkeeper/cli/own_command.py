"""How this program is called from the user's shell, for lines that are meant to be pasted."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "tollkeeper"


def pasted_command(config: Path | None) -> str:
    """The shortest words that call this very program with the same settings file."""
    beside = Path(sys.executable).parent / _NAME
    found = shutil.which(_NAME)
    if found is not None and beside.exists() and Path(found).samefile(beside):
        words = [_NAME]
    elif beside.exists():
        words = [_shortest_path(beside)]
    else:
        words = [_shortest_path(Path(sys.executable)), "-m", _NAME]
    if config is not None:
        words += ["--config", str(config)]
    return shlex.join(words)


def _shortest_path(path: Path) -> str:
    """The path relative to the present folder if it is below it; otherwise as it is."""
    # The path of a program in a virtual environment must not be resolved: it is a link.
    folder = Path(os.path.abspath(os.curdir))  # noqa: PTH100
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
