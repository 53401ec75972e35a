"""The database of the recorded exchanges."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """After every exchange the whole ledger is verified: no other test may have touched it."""
    return own_database(shared_conninfo, "exchanges")
