"""Fixtures for the Responses tests: a gateway over a scripted upstream, and a separate database."""

import pytest

from tests.support.databases import own_database
from tests.support.responses_fixtures import shared_scripted

__all__ = ["shared_scripted"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a separate database: these tests verify the whole ledger, so no other test may use it."""
    return own_database(shared_conninfo, "responses")
