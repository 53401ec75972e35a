"""Provides one gateway with a scripted judge for all policy tests, and a new tenant for each test."""

import pytest

from tests.support.databases import own_database
from tests.support.judged_gateway_fixtures import judged, shared_judged

__all__ = ["judged", "shared_judged"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Returns a database that no other tests use, because these tests verify the whole ledger."""
    return own_database(shared_conninfo, "policies")
