"""A place for what Python compiles, where the environment forbids it to write beside the source.

Tests start hundreds of processes of the program, and each would compile all of it again.
"""

import os
import shutil
import tempfile

import pytest

_FORBIDDEN = "PYTHONDONTWRITEBYTECODE"
_PLACE = "PYTHONPYCACHEPREFIX"
_folder = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Processes that are started from here on inherit it, also those in which tests run at once."""
    if os.environ.get(_FORBIDDEN) and not os.environ.get(_PLACE):
        config.stash[_folder] = os.environ[_PLACE] = tempfile.mkdtemp(prefix="tk-compiled-")
        del os.environ[_FORBIDDEN]


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_folder, None)
    if folder is not None:
        os.environ[_FORBIDDEN] = "1"
        del os.environ[_PLACE]
        shutil.rmtree(folder, ignore_errors=True)
