"""Tests that operators' commands work on the invented history that the pictures of the console show."""

from pathlib import Path

import pytest
from tools.console_history import write_history

from tests.support.databases import own_database
from tests.support.scripted_gateway import scripted_settings
from tollkeeper.money.unsettled.bulk_resolution import BulkAction
from tollkeeper.setup import running_services

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def test_the_first_month_of_the_history_is_closed(
    shared_conninfo: str, data_dir: Path
) -> None:
    conninfo = own_database(shared_conninfo, "history")
    more = [{"id": "example/large", "pricing": {"prompt": "0.000002", "completion": "0.000008"}}]
    settings = scripted_settings(data_dir, "http://127.0.0.1:9/v1", more_models=more)
    await write_history(settings, conninfo)
    async with running_services(settings, conninfo) as services:
        left = await services.bulk_resolution.ledger_backlog(older_than_s=0)
        await services.bulk_resolution.ledger_resolve_all(left.selection, BulkAction.RELEASE)
        closed = await services.months.ledger_close()
        assert closed.state == "closed"
        assert closed.close is not None
        assert closed.close.reservations > 0
        assert await services.reconciliation.ledger_verify() == []
