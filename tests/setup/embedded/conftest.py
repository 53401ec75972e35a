"""Fixtures: one engine for all tests that only send requests to it, and helpers for PostgreSQL as root."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.data_folders import remove_outside_clusters
from tests.support.engine import address_of, running_engine
from tollkeeper.setup.embedded.engine import EmbeddedEngine
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.embedded.postgres_account import Account, ensure_account


@pytest.fixture(scope="session")
async def engine() -> AsyncIterator[EmbeddedEngine]:
    async with running_engine() as running:
        yield running


@pytest.fixture(scope="session")
def address(engine: EmbeddedEngine) -> EngineAddress:
    return address_of(engine)


@pytest.fixture
def account() -> Account:
    """Returns the account that runs PostgreSQL, and creates it if necessary. This needs root."""
    return ensure_account()


@pytest.fixture
def closed() -> Iterator[Path]:
    """Creates a folder that only its owner can enter."""
    with tempfile.TemporaryDirectory(prefix="tk-closed-") as name:
        folder = Path(name)
        assert folder.stat().st_mode & 0o777 == 0o700
        yield folder
        remove_outside_clusters(folder)
