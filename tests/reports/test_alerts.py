"""Tests that alerts are raised once for all processes, and that deliveries are signed and retried."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.databases import own_database
from tests.support.ledger import (
    LIMITS,
    LedgerTenant,
    Process,
    held,
    hold_of,
    make_tenant,
    running_process,
    settlement,
)
from tests.support.stream_server import StreamServer
from tollkeeper.core.errors import Unavailable
from tollkeeper.core.port import BackendHealth
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.caps.service import Caps
from tollkeeper.money.credit.service import Accounts
from tollkeeper.money.holds.rule import Refusal
from tollkeeper.money.overage.rule import Excess
from tollkeeper.money.verification import store as verification
from tollkeeper.reports.alerts import store as stored_alerts
from tollkeeper.reports.alerts.rule import AlertChange
from tollkeeper.reports.alerts.service import Alerts, DeliveryFailed
from tollkeeper.setup.settings import Settings, SettingsError
from tollkeeper.setup.webhook import alert_webhook

USD = 10**12
_SECRET = "a secret to sign with"


@pytest.fixture(scope="module")
async def apart(shared_conninfo: str) -> AsyncIterator[Process]:
    """Returns a process with its own database, because alerts concern everything in the database."""
    async with running_process(own_database(shared_conninfo, "alerts")) as found:
        yield found


@pytest.fixture
async def fresh(apart: Process) -> AsyncIterator[Process]:
    yield apart
    async with apart.database.autocommit() as connection:
        await connection.execute("TRUNCATE alerts, alert_observations, alert_deliveries")


class _Down:
    """Simulates a backend whose health the test sets."""

    def __init__(self) -> None:
        self.ready = True

    def health(self) -> BackendHealth:
        return BackendHealth("b", self.ready, "", {})


def _alerts(process: Process, **backends: Any) -> Alerts:
    return Alerts(process.database, backends, None)


def _told(changes: list[AlertChange], subject: object) -> list[tuple[str, str, int]]:
    return [
        (change.alert.kind.value, change.state.value, change.alert.level)
        for change in changes
        if str(subject) in change.alert.subject.values()
    ]


def _changes_of(changes: list[AlertChange], organization: object) -> list[AlertChange]:
    return [one for one in changes if one.alert.subject.get("organization_id") == str(organization)]


def _states(changes: list[AlertChange], kind: str) -> list[str]:
    """Returns the states of all changes of this kind, and ignores other alerts of other tests' tenants."""
    return [change.state.value for change in changes if change.alert.kind == kind]


async def _spend(process: Process, tenant: LedgerTenant, amount: int) -> None:
    hold = await held(process, tenant, amount)
    await process.ledger.resolve(settlement(hold, amount))


async def test_a_cap_and_a_credit_at_80_and_at_100_percent(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=100)
    accounts = Accounts(fresh.database, LIMITS)
    caps = Caps(fresh.database, LIMITS)
    await caps.cap_set(tenant.organization_id, 50, CapPeriod.TOTAL)
    alerts = _alerts(fresh)
    organization = tenant.organization_id
    assert _told(await alerts.check(), organization) == []
    await _spend(fresh, tenant, 40)
    assert _told(await alerts.check(), organization) == [("cap", "raised", 80)]
    assert _told(await alerts.check(), organization) == []
    await _spend(fresh, tenant, 10)
    assert _told(await alerts.check(), organization) == [("cap", "raised", 100)]
    await caps.cap_clear(organization)
    assert _told(await alerts.check(), organization) == [("cap", "cleared", 100)]
    await _spend(fresh, tenant, 50)
    assert _told(await alerts.check(), organization) == [("credit", "raised", 100)]
    await accounts.credit_grant(organization, 100)
    assert _told(await alerts.check(), organization) == [("credit", "cleared", 100)]


async def test_the_value_of_a_raised_alert_is_updated_and_not_told_again(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=100)
    organization = str(tenant.organization_id)
    posted: list[str] = []

    async def post(_: str, body: str) -> None:
        posted.append(body)

    alerts = Alerts(fresh.database, {}, post)

    async def detail() -> str:
        return next(
            one.detail
            for one in await alerts.alert_list()
            if one.subject.get("organization_id") == organization
        )

    await _spend(fresh, tenant, 80)
    await alerts.check()
    raised = await detail()
    await alerts.deliver()
    await _spend(fresh, tenant, 10)
    assert _told(await alerts.check(), organization) == []
    assert ("80 %" in raised, "90 %" in await detail()) == (True, True)
    await alerts.deliver()
    assert sum(organization in body for body in posted) == 1


async def test_caps_by_period_are_told_apart(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=10_000)
    caps, organization = Caps(fresh.database, LIMITS), tenant.organization_id
    await caps.cap_set(organization, 100, CapPeriod.DAY)
    await caps.cap_set(organization, 100, CapPeriod.MONTH)
    await caps.cap_set(organization, 60, CapPeriod.WEEK, key_id=tenant.key_id)
    await caps.cap_set(organization, 0, CapPeriod.DAY, tenant.project_id)
    alerts = _alerts(fresh)
    # A cap of zero is used up from the beginning.
    [change] = _changes_of(await alerts.check(), organization)
    assert change.alert.subject == {
        "organization_id": str(organization),
        "project_id": str(tenant.project_id),
        "period": "day",
    }
    await caps.cap_clear(organization, tenant.project_id)
    await _spend(fresh, tenant, 60)
    changes = _changes_of(await alerts.check(), organization)
    assert [(one.state.value, one.alert.level) for one in changes] == [
        ("raised", 100),
        ("cleared", 100),
    ]
    assert changes[0].alert.subject == {
        "organization_id": str(organization),
        "project_id": str(tenant.project_id),
        "key_id": str(tenant.key_id),
        "period": "week",
    }
    await caps.cap_clear(organization, key_id=tenant.key_id)
    await _spend(fresh, tenant, 30)
    found = [
        (one.state.value, one.alert.level, one.alert.subject.get("period"))
        for one in _changes_of(await alerts.check(), organization)
    ]
    assert set(found) == {("cleared", 100, "week"), ("raised", 80, "month"), ("raised", 80, "day")}


async def test_an_organization_that_is_stopped_by_its_overage(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=100)
    accounts, organization = Accounts(fresh.database, LIMITS), tenant.organization_id
    await accounts.overage_set(organization, 10)
    alerts = _alerts(fresh)
    hold = await held(fresh, tenant, 50)
    await fresh.ledger.resolve(settlement(hold, 150), hold)
    raised = [("credit", "raised", 100), ("negative_balance", "raised", 100)]
    assert _told(await alerts.check(), organization) == raised
    # The next call finds the balance below the bound, and stops the organization.
    assert (await fresh.ledger.hold(hold_of(tenant, 0))).refusal is Refusal.OVERAGE
    [told] = _changes_of(await alerts.check(), organization)
    assert (told.alert.kind.value, told.state.value) == ("stopped", "raised")
    assert "-0.00000000005 USD" in told.alert.detail
    # A grant alone does not clear the alert.
    await accounts.credit_grant(organization, 200)
    kinds = {kind for kind, _, _ in _told(await alerts.check(), organization)}
    assert "stopped" not in kinds
    await accounts.overage_clear(organization)
    assert _told(await alerts.check(), organization) == [("stopped", "cleared", 100)]


async def test_one_of_many_processes_tells(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=100)
    await _spend(fresh, tenant, 90)
    watchers = [_alerts(fresh) for _ in range(8)]
    found = await asyncio.gather(*(watcher.check() for watcher in watchers))
    told = [change for changes in found for change in _told(changes, tenant.organization_id)]
    assert told == [("credit", "raised", 80)]


async def test_a_backend_without_healthy_replicas(fresh: Process) -> None:
    backend = _Down()
    alerts = _alerts(fresh, b=backend)
    assert _told(await alerts.check(), "b") == []
    backend.ready = False
    assert _told(await alerts.check(), "b") == [("backend_down", "raised", 100)]
    assert _told(await alerts.check(), "b") == []
    backend.ready = True
    async with fresh.database.autocommit() as connection:
        await connection.execute("UPDATE alert_observations SET expires_at = now() - interval '1s'")
    assert _told(await alerts.check(), "b") == [("backend_down", "cleared", 100)]


async def test_a_model_that_exceeded_its_hold(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=100)
    alerts = _alerts(fresh)
    for cost, expected in ((150, [("exceeded_hold", "raised", 100)]), (160, []), (120, [])):
        hold = await held(fresh, tenant, 10)
        excess = Excess("example/new", "b", 10 * USD, cost * USD, 0)
        await fresh.ledger.resolve(replace(settlement(hold, 10), excess=excess), hold)
        assert _told(await alerts.check(), "b") == expected
    [standing] = [one for one in await alerts.alert_list() if one.kind == "exceeded_hold"]
    assert standing.subject == {"model": "example/new", "backend": "b"}
    assert "cost 160 USD, although its hold was 10 USD" in standing.detail
    async with fresh.database.autocommit() as connection:
        await connection.execute(
            "UPDATE observed_excesses SET noted_at = noted_at - interval '25 hours'"
        )
    assert _told(await alerts.check(), "b") == [("exceeded_hold", "cleared", 100)]
    async with fresh.database.autocommit() as connection:
        await connection.execute(
            "UPDATE observed_excesses SET noted_at = noted_at - interval '30 days'"
        )
    await alerts.check()
    async with fresh.database.autocommit() as connection:
        cursor = await connection.execute("SELECT count(*) FROM observed_excesses")
        assert await cursor.fetchone() == (0,)


async def test_reports_of_usage_and_differences_of_the_ledger(fresh: Process) -> None:
    alerts = _alerts(fresh)
    for _ in range(100):
        alerts.note_usage_report("cluster", "It does not fit.")
    assert _told(await alerts.check(), "cluster") == [("usage_report", "raised", 100)]
    assert _told(await alerts.check(), "cluster") == []
    for differences, expected in ((2, "raised"), (0, "cleared")):
        async with fresh.database.transaction() as connection:
            await verification.write_verification(connection, differences)
        assert _states(await alerts.check(), "ledger_difference") == [expected]


async def test_a_wrong_usage_report_is_kept_until_it_is_stored(
    fresh: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, observe = _alerts(fresh), stored_alerts.observe
    alerts.note_usage_report("early", "It does not fit.")

    async def fail(*_: Any) -> None:
        raise Unavailable("The database is unavailable; try again.")

    async def observe_during_another_report(*arguments: Any) -> None:
        await observe(*arguments)
        alerts.note_usage_report("late", "It does not fit.")

    monkeypatch.setattr(stored_alerts, "observe", fail)
    with pytest.raises(Unavailable):
        await alerts.check()
    monkeypatch.setattr(stored_alerts, "observe", observe_during_another_report)
    assert _told(await alerts.check(), "early") == [("usage_report", "raised", 100)]
    assert _told(await alerts.check(), "late") == [("usage_report", "raised", 100)]


@dataclass
class _Receiver:
    """Simulates a webhook's receiver. Answers with the given statuses, and after them with 204."""

    statuses: list[int] = field(default_factory=list)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
        }
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append((headers, body))
        status = self.statuses.pop(0) if self.statuses else 204
        location = f"Location: {self.url}\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{location}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()


@pytest.fixture
async def receiver() -> AsyncIterator[_Receiver]:
    found = _Receiver()
    async with StreamServer(found.serve) as server:
        found.url = f"http://127.0.0.1:{server.port}/hook"
        yield found


def _settings(url: str) -> Settings:
    webhook = {"url": url, "secret": "env:ALERTS_SECRET"}
    return Settings.model_validate({"alerts": {"webhook": webhook}})


@pytest.fixture
def posting(fresh: Process, receiver: _Receiver, monkeypatch: pytest.MonkeyPatch) -> Alerts:
    monkeypatch.setenv("ALERTS_SECRET", _SECRET)
    return Alerts(fresh.database, {}, alert_webhook(_settings(receiver.url)))


async def test_an_alert_is_delivered_signed_and_once(
    posting: Alerts, receiver: _Receiver, fresh: Process
) -> None:
    tenant = await make_tenant(fresh.database, credit=100)
    await _spend(fresh, tenant, 85)
    await posting.check()
    assert await posting.deliver() >= 1
    assert await posting.deliver() == 0
    bodies = [json.loads(body) for _, body in receiver.received]
    (mine,) = (
        body
        for body in bodies
        if body["subject"].get("organization_id") == str(tenant.organization_id)
    )
    assert (mine["kind"], mine["state"], mine["level"]) == ("credit", "raised", 80)
    assert len(receiver.received) == len(bodies)
    headers, body = receiver.received[0]
    moment, _, signed = headers["x-tollkeeper-signature"].partition(",v1=")
    content = moment.removeprefix("t=").encode() + b"." + body
    assert signed == hmac.new(_SECRET.encode(), content, hashlib.sha256).hexdigest()
    assert headers["x-tollkeeper-delivery"]


async def test_a_delivery_that_failed_is_tried_again(
    posting: Alerts, receiver: _Receiver, fresh: Process
) -> None:
    receiver.statuses = [500, 302]
    posting.note_usage_report("retried", "It does not fit.")
    await posting.check()
    async with fresh.database.autocommit() as connection:
        # Keep only the alert of this backend, because tenants of other tests also cause alerts.
        await connection.execute("DELETE FROM alert_deliveries WHERE body NOT LIKE '%retried%'")
    for _ in range(2):
        assert await posting.deliver() == 0
        assert await posting.deliver() == 0  # not due yet
        async with fresh.database.autocommit() as connection:
            await connection.execute("UPDATE alert_deliveries SET due_at = now()")
    assert await posting.deliver() == 1
    # A redirect is not followed.
    assert len(receiver.received) == 3
    assert len({headers["x-tollkeeper-delivery"] for headers, _ in receiver.received}) == 1


async def test_alerts_go_on_after_the_clock_was_set_back(posting: Alerts, fresh: Process) -> None:
    """The times in the database are from before, when the clock was a day ahead."""
    tenant = await make_tenant(fresh.database, credit=100)
    await _spend(fresh, tenant, 80)
    posting.note_usage_report("ahead", "It does not fit.")
    assert _told(await posting.check(), "ahead") == [("usage_report", "raised", 100)]
    async with fresh.database.autocommit() as connection:
        await connection.execute("UPDATE alert_deliveries SET due_at = now() + interval '1 day'")
        await connection.execute(
            "UPDATE alert_observations SET expires_at = now() + interval '1 day'"
        )
    assert await posting.deliver() >= 2
    assert _told(await posting.check(), "ahead") == [("usage_report", "cleared", 100)]


async def test_an_observation_after_the_clock_was_set_back_is_kept(fresh: Process) -> None:
    backend = _Down()
    backend.ready = False
    alerts = _alerts(fresh, b=backend)
    assert _told(await alerts.check(), "b") == [("backend_down", "raised", 100)]
    async with fresh.database.autocommit() as connection:
        await connection.execute(
            "UPDATE alert_observations SET expires_at = now() + interval '1 day'"
        )
    assert _told(await alerts.check(), "b") == []


async def test_a_webhook_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERTS_SECRET", _SECRET)
    post = alert_webhook(_settings("http://127.0.0.1:1/x"))
    assert post is not None
    with pytest.raises(DeliveryFailed, match="cannot be reached"):
        await post("1", "{}")


async def test_the_queue_is_bounded(
    posting: Alerts, fresh: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.reports.alerts.service._QUEUED_MAX", 3)
    for number in range(5):
        posting.note_usage_report(f"backend {number}", "It does not fit.")
    await posting.check()
    async with fresh.database.autocommit() as connection:
        cursor = await connection.execute("SELECT count(*) FROM alert_deliveries")
        assert await cursor.fetchall() == [(3,)]


def test_a_webhook_needs_a_secret() -> None:
    with pytest.raises(ValueError, match="which signs the alerts"):
        Settings.model_validate({"alerts": {"webhook": {"url": "https://x"}}})
    with pytest.raises(ValueError, match="needs url"):
        Settings.model_validate({"alerts": {"webhook": {"secret": "env:ALERTS_SECRET"}}})
    with pytest.raises(SettingsError, match=r"\$ALERTS_SECRET is not set"):
        alert_webhook(_settings("https://x"))
    assert alert_webhook(Settings()) is None


async def test_what_is_unsettled_for_more_than_an_hour(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=1000)
    alerts = _alerts(fresh)
    hold = await held(fresh, tenant, 1)
    await fresh.ledger.mark_unsettled(hold, "nobody knows")
    assert _states(await alerts.check(), "unsettled") == []
    async with fresh.database.autocommit() as connection:
        await connection.execute(
            "UPDATE unsettled_marks SET marked_at = now() - interval '2h' WHERE reservation_id = %s",
            (hold.id,),
        )
    assert _states(await alerts.check(), "unsettled") == ["raised"]
    await fresh.ledger.resolve(settlement(hold, 1))
    assert _states(await alerts.check(), "unsettled") == ["cleared"]


async def test_a_negative_balance(fresh: Process) -> None:
    tenant = await make_tenant(fresh.database, credit=10)
    alerts = _alerts(fresh)
    hold = await held(fresh, tenant, 10)
    await fresh.ledger.resolve(settlement(hold, 30))
    told = _told(await alerts.check(), tenant.organization_id)
    assert sorted(told) == [("credit", "raised", 100), ("negative_balance", "raised", 100)]
    await Accounts(fresh.database, LIMITS).credit_grant(tenant.organization_id, 100)
    told = _told(await alerts.check(), tenant.organization_id)
    assert sorted(told) == [("credit", "cleared", 100), ("negative_balance", "cleared", 100)]
