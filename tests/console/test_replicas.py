"""Tests how the backends page and the overview show the replica reports of gateway processes."""

import json
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.support.console_site import ConsoleSite, Watched
from tests.support.tables import each
from tollkeeper.console.context import ProbedReplica
from tollkeeper.console.replica_views import Badge, ReplicaViews, traffic_by_replica
from tollkeeper.core.port import ReplicaReport
from tollkeeper.reports.replicas.service import ProcessReport
from tollkeeper.reports.traffic.rule import BackendTraffic

_HEALTHY = ReplicaReport("scripted", "http://one", "healthy")
_EJECTED = ReplicaReport(
    "scripted", "http://one", "ejected", 12.0, "The backend cannot be reached."
)
_FAILING = ReplicaReport("scripted", "http://one", "failing")
_PROBING = ReplicaReport("scripted", "http://one", "probing", 3.0)


def _views(*replicas: ReplicaReport) -> ReplicaViews:
    processes = [ProcessReport("host", number, 2.0, (one,)) for number, one in enumerate(replicas)]
    return ReplicaViews(processes, now=1000)


@each(
    ("replicas", "badges"),
    [
        ((), [Badge("not reported by any gateway", "calm")]),
        ((_HEALTHY, _HEALTHY), [Badge("healthy", "good")]),
        ((_EJECTED,), [Badge("ejected", "bad")]),
        ((_HEALTHY, _EJECTED, _PROBING), [Badge("ejected in 2 of 3 processes", "bad")]),
        ((_FAILING,), [Badge("down, called because no replica is healthy", "bad")]),
        (
            (_FAILING, _EJECTED),
            [
                Badge("ejected in 1 of 2 processes", "bad"),
                Badge("down, called because no replica is healthy in 1 of 2 processes", "bad"),
            ],
        ),
    ],
)
def test_what_processes_say_together(
    replicas: Sequence[ReplicaReport], badges: list[Badge]
) -> None:
    assert _views(*replicas).badges("scripted", "http://one") == badges


def test_the_end_of_an_ejection_is_counted_from_the_report() -> None:
    (view,) = _views(_EJECTED).of_backend("scripted")
    assert view.ejected_until == 1000 - 2 + 12


def test_the_engine_is_known_by_its_name_whatever_its_address() -> None:
    reported = ReplicaReport("local", "http://127.0.0.1:4711/v1", "healthy")
    assert _views(reported).badges("local", "embedded engine") == [Badge("healthy", "good")]
    assert _views(reported).badges("other", "embedded engine") == [
        Badge("not reported by any gateway", "calm")
    ]
    replicas = [
        ProbedReplica("local", "embedded engine", ok=True, detail=""),
        ProbedReplica("scripted", "http://one", ok=True, detail=""),
    ]
    ran = [
        *(_traffic("local", f"http://127.0.0.1:{port}/v1") for port in (4711, 4712)),
        *(
            _traffic("local", ""),
            _traffic("scripted", "http://one"),
            _traffic("scripted", "http://two"),
        ),
    ]
    assert traffic_by_replica(ran, replicas) == {
        ("local", "embedded engine"): ran[:2],
        ("local", ""): [ran[2]],
        ("scripted", "http://one"): [ran[3]],
        ("scripted", "http://two"): [ran[4]],
    }


def _traffic(backend: str, replica: str) -> BackendTraffic:
    return BackendTraffic("example/chat", backend, replica, *[1] * 11)


@pytest.mark.slow
async def test_the_pages_show_it(site: ConsoleSite, watched: Watched) -> None:
    url = site.judged.model.url
    ejected = {
        "backend": "scripted",
        "url": url,
        "state": "ejected",
        "retry_in_s": 30.0,
        "last_failure": "The backend <b>cannot</b> be reached.",
        "calls": 3,
        "connections": 5,
        "waiting": 2,
    }
    process = uuid4()
    async with site.services.database.autocommit() as connection:
        await connection.execute(
            "INSERT INTO processes (id, host, pid) VALUES (%s, 'gateway-7', 4711)", (process,)
        )
        await connection.execute(
            "INSERT INTO replica_reports (process_id, reported_at, report)"
            " VALUES (%s, clock_timestamp(), %s::jsonb)",
            (process, json.dumps([ejected])),
        )
    page = watched.page
    try:
        await page.goto(f"{site.address}/backends")
        table = page.get_by_role("group", name="Replicas of scripted by gateway process")
        row = table.get_by_role("row").filter(has_text="gateway-7 pid 4711")
        text = await row.inner_text()
        assert "ejected" in text
        assert "until" in text
        assert "The backend <b>cannot</b> be reached." in text
        cells = await row.get_by_role("cell").all_inner_texts()
        assert cells[3:6] == ["3", "5", "2"]
        await page.goto(site.address)
        badges = page.get_by_role("row").filter(has_text=url)
        assert "ejected" in await badges.inner_text()
    finally:
        async with site.services.database.autocommit() as connection:
            await connection.execute("DELETE FROM processes WHERE id = %s", (process,))
