"""Stores compiled Python files below `.pytest_cache` if the environment forbids them beside the source.

Tests start hundreds of processes of the program, and each would compile all files again. The files
stay for the next run, because compiling all tests takes longer than importing and collecting them.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

_FORBIDDEN = "PYTHONDONTWRITEBYTECODE"
_PLACE = "PYTHONPYCACHEPREFIX"
_is_set = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Sets the folder for this process and for all processes that it starts."""
    if not os.environ.get(_FORBIDDEN) or os.environ.get(_PLACE):
        return
    folder = config.rootpath / ".pytest_cache" / "compiled"
    _remove_gone(folder)
    del os.environ[_FORBIDDEN]
    os.environ[_PLACE] = sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False
    config.stash[_is_set] = True


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash.get(_is_set, False):
        os.environ[_FORBIDDEN] = "1"
        del os.environ[_PLACE]
        sys.pycache_prefix = None
        sys.dont_write_bytecode = True


def _remove_gone(folder: Path) -> None:
    """Removes the compiled files of temporary folders that do not exist any more."""
    temporary = Path(tempfile.gettempdir())
    for path in (folder / temporary.relative_to(temporary.anchor)).glob("*"):
        if not (temporary / path.name).exists():
            shutil.rmtree(path, ignore_errors=True)
