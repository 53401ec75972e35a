"""The gateway and the tenant of these tests are those of the books."""

import pytest

from tests.support.gateway import Gateway, Tenant
from tests.support.ledger_months_fixtures import old

__all__ = ["gateway", "old", "tenant"]


@pytest.fixture(scope="session")
def gateway(books_gateway: Gateway) -> Gateway:
    return books_gateway


@pytest.fixture
def tenant(books_tenant: Tenant) -> Tenant:
    return books_tenant
