"""One court for all policy tests, and a fresh tenant for each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.conftest import compiled
from tests.databases import own_database
from tests.policies.court import Court, sitting

__all__ = ["compiled"]


@pytest.fixture(scope="session")
def conninfo(conninfo: str) -> str:
    """The whole ledger is verified here: no other test may have touched it."""
    return own_database(conninfo, "policies")


@pytest.fixture(scope="package")
async def house(data_dir: Path, conninfo: str) -> AsyncIterator[Court]:
    model = {"input_modalities": ["text", "image"], "context_length": 1_000_000}
    async with sitting(data_dir, conninfo, model=model) as court:
        yield court


@pytest.fixture
async def court(house: Court) -> Court:
    return await house.anew()
