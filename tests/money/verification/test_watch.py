"""Tests that the ledger's gauges show the state of the ledger."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from tests.support.databases import own_database
from tests.support.ledger import (
    Process,
    held,
    make_process,
    make_tenant,
    release,
    run,
    running_process,
    settlement,
)
from tests.support.tables import each
from tollkeeper.money.unsettled.open_holds import OpenHolds
from tollkeeper.money.unsettled.recovery import Recovery
from tollkeeper.money.verification.metrics import LedgerWatch, ReasonLabel, reason_label
from tollkeeper.providers.failures import domain_error
from tollkeeper.providers.transport.http1 import DeadlinePassed, HttpFailure, PeerSilent


@pytest.fixture(scope="module")
async def apart(shared_conninfo: str) -> AsyncIterator[Process]:
    """Returns a process with its own database, because the gauges count everything in the database."""
    async with running_process(own_database(shared_conninfo, "watched")) as found:
        yield found


def _shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def _unsettled() -> dict[str, float | None]:
    found = {
        label.value: _shown("tollkeeper_unsettled_reservations", reason=label.value)
        for label in ReasonLabel
    }
    return {label: number for label, number in found.items() if number}


async def test_the_gauges_follow_the_books(apart: Process) -> None:
    watch = LedgerWatch(apart.database, OpenHolds())
    await watch.refresh()
    assert _unsettled() == {}
    for name in (
        "tollkeeper_oldest_unsettled_seconds",
        "tollkeeper_negative_accounts",
        "tollkeeper_stopped_accounts",
        "tollkeeper_oldest_hold_seconds",
    ):
        assert _shown(name) == 0

    tenant = await make_tenant(apart.database, credit=100)
    dead = make_process(apart.database)
    await held(dead, tenant, 1)
    await Recovery(apart.database, 0).ledger_recover()
    unknown = [await held(apart, tenant, 1) for _ in range(3)]
    for hold, reason in zip(
        unknown, ("The backend sent no data for too long.", "a", "b"), strict=True
    ):
        await apart.ledger.mark_unsettled(hold, reason)
    await run(
        apart.database,
        "UPDATE unsettled_marks SET marked_at = marked_at - interval '1 hour' WHERE reason = 'a'",
    )
    running = await held(apart, tenant, 1)
    await run(
        apart.database,
        "UPDATE reservations SET held_at = held_at - interval '200 seconds' WHERE id = %s",
        running.id,
    )
    # This resolution is not folded yet, but the gauges count it.
    debtor = await make_tenant(apart.database, credit=10)
    await apart.ledger.resolve(settlement(await held(apart, debtor, 10), 11))
    await watch.refresh()
    assert _unsettled() == {"process_died": 1, "backend": 1, "other": 2}
    assert 3600 <= (_shown("tollkeeper_oldest_unsettled_seconds") or 0) < 7200
    assert _shown("tollkeeper_negative_accounts") == 1
    await run(
        apart.database,
        "UPDATE accounts SET stopped = true WHERE organization_id = %s",
        debtor.organization_id,
    )
    await watch.refresh()
    assert _shown("tollkeeper_stopped_accounts") == 1
    assert 200 <= (_shown("tollkeeper_oldest_hold_seconds") or 0) < 900

    for hold in (*unknown, running):
        await apart.ledger.resolve(release(hold))
    await watch.refresh()
    assert _unsettled() == {"process_died": 1}
    assert _shown("tollkeeper_oldest_hold_seconds") == 0


@each(
    ("reason", "label"),
    [
        (domain_error(DeadlinePassed(), charged=True).message, ReasonLabel.DEADLINE),
        (domain_error(PeerSilent(), charged=True).message, ReasonLabel.BACKEND),
        (domain_error(HttpFailure(), charged=True).message, ReasonLabel.BACKEND),
        ("the process that served the call died", ReasonLabel.PROCESS_DIED),
        ("the database has lost the end of the call", ReasonLabel.END_LOST),
        ("the gateway failed during the call", ReasonLabel.GATEWAY_FAILED),
        ("The backend's report of usage cannot be true.", ReasonLabel.USAGE),
        ("", ReasonLabel.OTHER),
    ],
)
def test_a_reason_has_one_of_few_labels(reason: str, label: ReasonLabel) -> None:
    assert reason_label(reason) is label
