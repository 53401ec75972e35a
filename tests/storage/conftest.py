"""Fixtures for tests of the embedded PostgreSQL as root."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_folders import remove_outside_clusters
from tollkeeper.embedded.postgres_account import Account, ensure_account


@pytest.fixture
def account() -> Account:
    """The account that runs PostgreSQL. Only root can ask for it."""
    return ensure_account()


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that only its owner can enter."""
    with tempfile.TemporaryDirectory(prefix="tk-closed-") as name:
        folder = Path(name)
        assert folder.stat().st_mode & 0o777 == 0o700
        yield folder
        remove_outside_clusters(folder)
