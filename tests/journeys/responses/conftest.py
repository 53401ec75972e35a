"""Gateways over upstreams that speak chat and Responses, and a fresh tenant for each test."""

import pytest

from tests.support.databases import own_database
from tests.support.responses_fixtures import native, shared_native, shared_scripted

__all__ = ["native", "shared_native", "shared_scripted"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """The whole ledger is verified here: no other test may have touched it."""
    return own_database(shared_conninfo, "responses_journeys")
