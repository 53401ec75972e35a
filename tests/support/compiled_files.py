"""Lets each Python file be compiled only once, because compiling all tests takes longer than importing
and collecting them.

If the environment forbids compiled files beside the source, they are stored below `.pytest_cache`.
Tests start hundreds of processes of the program, and each would compile all files again.
"""

import importlib
import os
import shutil
import sys
import tempfile
from contextlib import suppress
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Imports a share of the test files before the others are collected. If pytest-xdist has started
    several processes in a new clone, each of them compiles its own share, and finds the files of the
    other shares compiled. Without shares, each process would compile all files."""
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    number = int(worker["workerid"].removeprefix("gw"))
    selected = [config.rootpath / argument.partition("::")[0] for argument in config.args]
    files = sorted(file for path in selected for file in path.rglob("test_*.py"))
    for file in files[number :: worker["workercount"]]:
        module = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        # If the import fails, pytest repeats it and reports the error.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(module)


def _remove_gone(folder: Path) -> None:
    """Removes the compiled files of temporary folders that do not exist any more."""
    temporary = Path(tempfile.gettempdir())
    for path in (folder / temporary.relative_to(temporary.anchor)).glob("*"):
        if not (temporary / path.name).exists():
            shutil.rmtree(path, ignore_errors=True)
