"""Fixtures for the tests of policies: a gateway with a scripted judge, and a new tenant for each test."""

import pytest

from tests.support.databases import own_database
from tests.support.judged_gateway_fixtures import judged, shared_judged

__all__ = ["judged", "shared_judged"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a database for these tests alone, because they verify the whole ledger."""
    return own_database(shared_conninfo, "policy_journeys")
