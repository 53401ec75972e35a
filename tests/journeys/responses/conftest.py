"""Defines gateways whose upstreams use chat or Responses, and a new tenant for each test."""

import pytest

from tests.support.databases import own_database
from tests.support.responses_fixtures import native, shared_native, shared_scripted

__all__ = ["native", "shared_native", "shared_scripted"]


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a separate database, because the tests of this folder verify the whole ledger."""
    return own_database(shared_conninfo, "responses_journeys")
