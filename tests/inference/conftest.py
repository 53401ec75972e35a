"""What the tests of inference share: books that nobody else writes to, and the warm program."""

import pytest

from tests.cli.conftest import compiled
from tests.databases import own_database

__all__ = ["compiled"]


@pytest.fixture(scope="session")
def conninfo(conninfo: str) -> str:
    """After every call the whole ledger is verified: no other test may have touched it."""
    return own_database(conninfo, "inference")
