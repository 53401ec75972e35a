"""Tests the alerts that a gateway keeps in its own process, and their delivery."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.support.scripted_gateway import eventually
from tollkeeper.core.runtime.batches import Backoff
from tollkeeper.entry import process_alerts
from tollkeeper.entry.operator_listener import Readiness
from tollkeeper.entry.process_alerts import ProcessAlerts
from tollkeeper.reports.alerts.service import DeliveryFailed

_PARTS = {"workers": "1 of 1 answer", "database": "nobody answers", "holds": "the disk is full"}
_READY = Readiness(_PARTS, ready=True)
_DOWN = Readiness(_PARTS, ready=False, database_reachable=False, database_writable=False)
_REFUSED = Readiness(_PARTS, ready=True, database_reachable=False)
_FULL = Readiness(_PARTS, ready=False, database_writable=False)
_NO_BACKEND = Readiness(_PARTS, ready=False)


def _standing(alerts: ProcessAlerts) -> list[tuple[str, str]]:
    return [(one["kind"], one["detail"]) for one in alerts.document["data"]]


def test_one_cause_is_one_alert() -> None:
    alerts = ProcessAlerts(None)
    alerts.check(_READY)
    assert _standing(alerts) == []
    alerts.check(_DOWN)
    assert _standing(alerts) == [("database_unreachable", "nobody answers")]
    alerts.check(_FULL)
    assert _standing(alerts) == [("database_not_writable", "the disk is full")]
    alerts.check(_REFUSED)
    assert _standing(alerts) == [("database_refuses_connections", "nobody answers")]
    alerts.check(replace(_REFUSED, ready=False))
    assert [kind for kind, _ in _standing(alerts)] == ["database_refuses_connections", "not_ready"]
    alerts.check(_NO_BACKEND)
    ((kind, detail),) = _standing(alerts)
    assert kind == "not_ready"
    assert "workers: 1 of 1 answer" in detail
    alerts.check(replace(_READY, old_servers=("a is old",)))
    assert _standing(alerts) == [("old_database_server", "a is old")]
    alerts.check(replace(_DOWN, old_servers=("a is old",)))
    assert _standing(alerts) == [("old_database_server", "a is old")]
    alerts.check(replace(_FULL, old_servers=("a is old",)))
    assert [kind for kind, _ in _standing(alerts)] == [
        "old_database_server",
        "database_not_writable",
    ]
    alerts.check(_READY)
    assert _standing(alerts) == []


def test_a_start_is_no_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may need a while to load its model. A database that is down is an alert at once."""
    alerts = ProcessAlerts(None)
    alerts.check(_NO_BACKEND)
    assert _standing(alerts) == []
    alerts.check(_DOWN)
    assert [kind for kind, _ in _standing(alerts)] == ["database_unreachable"]
    monkeypatch.setattr(process_alerts, "_START_S", 0.0)
    late = ProcessAlerts(None)
    late.check(_NO_BACKEND)
    assert [kind for kind, _ in _standing(late)] == ["not_ready"]


async def test_each_change_is_posted_once_and_again_where_that_fails() -> None:
    posted: list[tuple[str, str]] = []

    async def post(delivery_id: str, body: str) -> None:
        posted.append((delivery_id, body))
        if len(posted) == 1:
            raise DeliveryFailed("the webhook answered 500")

    before, process_alerts._RETRIES = process_alerts._RETRIES, Backoff(0.01, 0.01)
    try:
        alerts = ProcessAlerts(post)
    finally:
        process_alerts._RETRIES = before
    for readiness in (_DOWN, _DOWN, _READY, _READY):
        alerts.check(readiness)
    await eventually(lambda: len(posted) == 3)
    await asyncio.sleep(0.05)
    assert posted[0] == posted[1]
    told = [json.loads(body) for _, body in posted[1:]]
    assert [(one["kind"], one["state"]) for one in told] == [
        ("database_unreachable", "raised"),
        ("database_unreachable", "cleared"),
    ]
    await alerts.close()
