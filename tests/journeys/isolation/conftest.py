"""The database of the journeys between tenants."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """The whole ledger is verified after each attack: no other test may have touched it."""
    return own_database(shared_conninfo, "isolation")
