"""Provides separate books with two past months."""

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.support.databases import own_database
from tests.support.ledger import running_process
from tests.support.ledger_months import OldBooks, this_month


@pytest.fixture
async def old(shared_conninfo: str) -> AsyncIterator[OldBooks]:
    """Yields books with two months that ended more than a month ago, whatever day it is."""
    conninfo = own_database(shared_conninfo, f"months_{secrets.token_hex(4)}")
    async with running_process(conninfo) as process:
        books = OldBooks(process)
        now = this_month()
        await books.begin(now.plus(-3), now.plus(-2))
        yield books
