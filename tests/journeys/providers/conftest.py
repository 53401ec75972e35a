"""The database of the providers."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """The whole ledger is verified after calls: no other test may have touched it."""
    return own_database(shared_conninfo, "providers")
