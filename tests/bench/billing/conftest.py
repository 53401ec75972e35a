"""Provides the database for the tests of the billing benchmark."""

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    return own_database(shared_conninfo, "billing")
