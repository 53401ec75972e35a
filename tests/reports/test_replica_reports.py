"""Tests that each gateway process publishes replica reports, which disappear with the process or when
they are old."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.constants import backend_constants
from tests.support.databases import own_database
from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.support.upstream import Upstream, chat, unused_url
from tollkeeper.reports.replicas.service import ProcessReport
from tollkeeper.setup.services import Services


@pytest.fixture(scope="module")
def conninfo(shared_conninfo: str) -> str:
    """Returns a database in which no other process writes reports."""
    return own_database(shared_conninfo, "replica_reports")


@pytest.fixture
async def scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with Upstream(chat()) as upstream:
        urls = [upstream.url, unused_url()]
        async with scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            backend={"urls": urls},
            changed_constants=backend_constants(failures_to_eject=1, organizations_to_eject=1),
        ) as running:
            yield await running.with_tenant()
            await running.gateway.services.lease.sign_off()


async def _published(services: Services) -> list[ProcessReport]:
    await services.lease.heartbeat()
    await services.upkeep.publish_replicas()
    return await services.replica_reports.replica_report_list()


async def test_a_process_tells_of_its_replicas(scripted: ScriptedGateway) -> None:
    services = scripted.gateway.services
    (before,) = await _published(services)
    assert before.pid == os.getpid()
    assert [replica.state for replica in before.replicas] == ["healthy", "healthy"]
    for _ in range(20):
        assert (await scripted.chat()).status_code == 200
    (after,) = await _published(services)
    alive, dead = after.replicas
    assert (alive.url, alive.state) == (scripted.upstream.url, "healthy")
    assert (dead.backend, dead.state) == ("scripted", "ejected")
    assert dead.last_failure == "The backend cannot be reached."
    assert dead.retry_in_s is not None
    assert after.age_s < 60


async def test_reports_go_with_their_process(scripted: ScriptedGateway) -> None:
    services = scripted.gateway.services
    assert await _published(services)
    await services.lease.sign_off()
    assert await services.replica_reports.replica_report_list() == []
    # A process without a lease writes no reports, because no process would delete them.
    await services.upkeep.publish_replicas()
    assert await services.replica_reports.replica_report_list() == []


async def test_old_reports_are_not_shown(scripted: ScriptedGateway) -> None:
    services = scripted.gateway.services
    assert await _published(services)
    async with services.database.autocommit() as connection:
        await connection.execute(
            "UPDATE replica_reports SET reported_at = now() - interval '2 minutes'"
        )
    assert await services.replica_reports.replica_report_list() == []


async def test_a_report_of_another_version_is_read_as_far_as_it_can_be(
    scripted: ScriptedGateway,
) -> None:
    services = scripted.gateway.services
    assert await _published(services)
    for report, states in (
        ('[{"backend": "b", "url": "u", "state": "resting", "moon": "full"}]', ["resting"]),
        ('{"other": "form"}', []),
    ):
        async with services.database.autocommit() as connection:
            await connection.execute("UPDATE replica_reports SET report = %s::jsonb", (report,))
        (found,) = await services.replica_reports.replica_report_list()
        assert [replica.state for replica in found.replicas] == states
