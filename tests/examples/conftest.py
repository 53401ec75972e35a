"""Fixtures: a database for the examples, and a gateway with a scripted judge for examples about policies."""

import pytest

from tests.support.databases import own_database
from tests.support.judged_gateway_fixtures import judged, shared_judged

__all__ = ["judged", "shared_judged"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Returns a separate database. The examples verify the whole ledger, so other tests must not change it."""
    return own_database(shared_conninfo, "examples")
