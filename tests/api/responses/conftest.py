"""One gateway over one scripted upstream, and a fresh tenant for each test."""

import pytest

from tests.support.databases import own_database
from tests.support.responses_fixtures import shared_scripted

__all__ = ["shared_scripted"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """The whole ledger is verified here: no other test may have touched it."""
    return own_database(shared_conninfo, "responses")
