"""Defines that the tests of this folder use the gateway and the tenant of the fixture `books`."""

import pytest

from tests.support.capped_books import cap_clock, capped_books
from tests.support.gateway import Gateway, Tenant
from tests.support.ledger_months_fixtures import old

__all__ = ["cap_clock", "capped_books", "gateway", "old", "tenant"]


@pytest.fixture(scope="session")
def gateway(books_gateway: Gateway) -> Gateway:
    return books_gateway


@pytest.fixture
def tenant(books_tenant: Tenant) -> Tenant:
    return books_tenant
