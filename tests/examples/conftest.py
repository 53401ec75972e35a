"""The database of the examples, and a gateway with a scripted judge for those about policies."""

import pytest

from tests.support.databases import own_database
from tests.support.judged_gateway_fixtures import judged, shared_judged

__all__ = ["judged", "shared_judged"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """The whole ledger is verified here: no other test may have touched it."""
    return own_database(shared_conninfo, "examples")
