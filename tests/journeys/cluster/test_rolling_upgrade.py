"""Tests that a fleet changes to the next version and schema while a client calls it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx2
import pytest

from tests.support.balancer import Balancer
from tests.support.data_folders import data_folder
from tests.support.documents import ROOT, mentions_of
from tests.support.gateway import Gateway
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.program import Program, Serving, serving
from tests.support.proof import Proof
from tests.support.releases import Migration, Release, make_release
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway
from tests.support.sdks import openai
from tests.support.upstream import Upstream, chat
from tollkeeper.database.migrations import migrate
from tollkeeper.database.revisions import code_revision, revisions
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.slow

_CALLERS = 6
_PAUSE_S = 0.1
_LEASE_S = 2
_OLD = code_revision()

# The migrations rename the heartbeat column. The first adds a column and keeps both equal, so that
# processes of both versions see that the others are alive. The second drops the old column.
EXPAND = Migration(
    "9001",
    revisions()[-1].compatible_from,
    """
    ALTER TABLE processes ADD COLUMN seen_at timestamptz NOT NULL DEFAULT clock_timestamp();
    CREATE TABLE zones (name text PRIMARY KEY);
    CREATE FUNCTION keep_both_names() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'UPDATE' AND NEW.heartbeat_at IS DISTINCT FROM OLD.heartbeat_at THEN
            NEW.seen_at := NEW.heartbeat_at;
        ELSE
            NEW.heartbeat_at := NEW.seen_at;
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER keep_both_names BEFORE INSERT OR UPDATE ON processes
        FOR EACH ROW EXECUTE FUNCTION keep_both_names();
    """,
    concurrent_indexes={"grants_by_time": "ON grants (granted_at)"},
)
CONTRACT = Migration(
    "9002",
    "9001",
    """
    DROP TRIGGER keep_both_names ON processes;
    DROP FUNCTION keep_both_names();
    ALTER TABLE processes DROP COLUMN heartbeat_at;
    """,
)
# The commands of the page, in their order: check, expand, and in the last step contract.
_DOCTOR, _EXPAND, _MIGRATE = (
    tuple(line.split()[1:]) for line in mentions_of(ROOT / "docs" / "upgrade.md")[:3]
)
_RENAMED = [
    (name, "heartbeat_at", "seen_at") for name in ("ledger.py", "processes.py", "verification.py")
]


@dataclass
class Fleet:
    """Gateways of several versions on one database, behind one balancer."""

    installed: InstalledProgram
    new: Release
    newest: Release
    balancer: Balancer
    running: dict[str, tuple[Serving, ExitStack]] = field(default_factory=dict)

    @property
    def old_program(self) -> Program:
        return self.installed.program

    @property
    def old_commands(self) -> Program:
        return replace(self.installed.program, warm=True)

    async def start(self, name: str, program: Program) -> None:
        stack = ExitStack()
        served = await asyncio.to_thread(stack.enter_context, serving(program))
        self.running[name] = served, stack
        self.balancer.members.append(served.public)

    async def stop(self, name: str) -> None:
        """Stops a gateway as an orchestrator does: first no new calls, then the signal."""
        served, stack = self.running.pop(name)
        self.balancer.members.remove(served.public)
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(served.process.wait, 60) == 0, served.log.read_text()
        stack.close()

    async def readiness(self, name: str) -> httpx2.Response:
        async with httpx2.AsyncClient() as client:
            return await client.get(f"{self.running[name][0].operator}/readyz")

    async def close(self) -> None:
        for _, stack in self.running.values():
            await asyncio.to_thread(stack.close)


@asynccontextmanager
async def running_fleet(compiled: dict[str, str]) -> AsyncIterator[Fleet]:
    with data_folder() as folder, EmbeddedPostgres(folder / "data") as server:
        migrate(server.conninfo)
        async with (
            Upstream(chat()) as upstream,
            installed_program(
                folder, folder / "data", server.conninfo, upstream, compiled,
                changed_constants={"database.processes.LEASE_S": _LEASE_S},
            ) as installed,
            Balancer([], patience_s=60, timeout_s=30, lenient=True) as balancer,
        ):  # fmt: skip
            fleet = Fleet(
                installed,
                make_release(folder / "new", EXPAND, renamed=_RENAMED),
                make_release(folder / "newest", EXPAND, CONTRACT, renamed=_RENAMED),
                balancer,
            )
            try:
                yield fleet
            finally:
                await fleet.close()


class Load:
    """Clients with OpenAI's SDK that make one call after the other until they are stopped."""

    def __init__(self, fleet: Fleet, key: str) -> None:
        self._client = openai.AsyncOpenAI(
            base_url="http://gateways/v1",
            api_key=key,
            http_client=httpx2.AsyncClient(transport=fleet.balancer, timeout=90),
        )
        self._stopping = False
        self._news = asyncio.Event()
        self.calls = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._call(number % 2 == 0) for number in range(_CALLERS)))

    async def _call(self, streamed: bool) -> None:
        while not self._stopping:
            assert await (self._streamed() if streamed else self._whole()) == "Hello"
            self.calls += 1
            self._news.set()
            # Pause between calls, because the machine also starts programs meanwhile.
            await asyncio.sleep(_PAUSE_S)

    async def _whole(self) -> str | None:
        answer = await self._client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )
        return answer.choices[0].message.content

    async def _streamed(self) -> str:
        stream = await self._client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        return "".join([piece.choices[0].delta.content or "" async for piece in stream])

    async def goes_on(self, calls: int) -> None:
        """Waits until `calls` further calls have succeeded."""
        target = self.calls + calls
        async with asyncio.timeout(60):
            while self.calls < target:
                self._news.clear()
                await self._news.wait()

    async def stop(self, calling: asyncio.Task[None]) -> None:
        """Lets running calls end, and closes the client."""
        self._stopping = True
        await calling
        await self._client.close()


async def test_versions_overlap_while_calls_go_on(compiled: dict[str, str], proof: Proof) -> None:
    async with running_fleet(compiled) as fleet, AsyncExitStack() as ends:
        for name in ("old 1", "old 2"):
            await fleet.start(name, fleet.old_program)
        gateway = Gateway("", fleet.installed.services, httpx2.AsyncClient())
        tenant = await gateway.make_tenant()
        scripted = ScriptedGateway(gateway, fleet.installed.upstream, tenant, probe_tenant=tenant)
        await scripted.grant(10**13)
        load = Load(fleet, tenant.project_key)
        calling = asyncio.create_task(load.run())
        ends.callback(calling.cancel)
        await load.goes_on(20)

        await _expand(fleet, load)
        await _roll_back(fleet, load)
        await _contract(fleet, load)

        await load.stop(calling)
        entries = await scripted.entries()
        settled = [entry for entry in entries if entry.status == "settled"]
        assert len(settled) == load.calls
        assert {entry.cost for entry in settled} == {COST}
        assert {entry.status for entry in entries} <= {"settled", "released"}
        assert fleet.balancer.attempts.strange == []
        verified = await asyncio.to_thread(
            fleet.newest.of(fleet.old_program).json, "ledger", "verify"
        )
        assert verified == {"ok": True, "differences": []}
        _count(proof, fleet, load)


def _count(proof: Proof, fleet: Fleet, load: Load) -> None:
    proof.count(
        "calls during rolling upgrades over an expanding and a contracting migration", load.calls
    )
    proof.count("calls that failed for a client during rolling upgrades", 0)
    proof.count(
        "attempts that the balancer repeated during rolling upgrades",
        fleet.balancer.attempts.repeated,
    )


async def _expand(fleet: Fleet, load: Load) -> None:
    """Expands the schema while two old gateways stay ready, and then replaces one of them."""
    new = fleet.new.of(fleet.old_program)
    # A new version does not start on a schema that is too old for it.
    refusal = await asyncio.to_thread(new.refusal, "serve")
    assert "this code needs 9001: run `tollkeeper migrate --expand`" in refusal
    checked = await asyncio.to_thread(new.json, *_DOCTOR)
    (warning,) = [row for row in checked["data"] if row["name"] == "database"]
    assert (warning["verdict"], checked["ok"]) == ("warning", True)
    assert "this code needs 9001: run `tollkeeper migrate --expand`" in warning["detail"]
    assert await asyncio.to_thread(new.json, *_EXPAND) == {"revision": "9001"}
    for name in ("old 1", "old 2"):
        ready = await fleet.readiness(name)
        assert ready.status_code == 200, ready.text
        assert "newer than this code" in ready.json()["database"]
    await load.goes_on(20)
    doctor = await asyncio.to_thread(fleet.old_commands.run, "doctor", "--json")
    assert f"schema 9001, newer than this code's {_OLD} and compatible" in doctor.out
    migrated = await asyncio.to_thread(fleet.old_commands.run, "migrate")
    assert migrated.code == 0
    assert "There is nothing to migrate" in migrated.out
    await fleet.start("new 1", new)
    await fleet.start("new 2", new)
    await load.goes_on(20)
    await fleet.stop("old 1")
    await load.goes_on(20)


async def _roll_back(fleet: Fleet, load: Load) -> None:
    """Replaces all new gateways by old ones, and these by new ones again."""
    await fleet.start("old 3", fleet.old_program)
    for name in ("new 1", "new 2"):
        await fleet.stop(name)
    await load.goes_on(20)
    new = fleet.new.of(fleet.old_program)
    for name in ("new 1", "new 2"):
        await fleet.start(name, new)
    await fleet.stop("old 3")
    await load.goes_on(20)


async def _contract(fleet: Fleet, load: Load) -> None:
    """Contracts the schema, which is possible only when no process with the old code runs."""
    newest = fleet.newest.of(fleet.old_program)
    (worker,) = fleet.running["old 2"][0].workers()
    refusal = await asyncio.to_thread(newest.refusal, *_MIGRATE)
    assert "Migration 9002 was not applied" in refusal
    assert f"pid {worker.pid} (code {_OLD}, seen" in refusal
    assert refusal.count("pid ") == 1
    # The newest version can serve before the contraction, too.
    assert await asyncio.to_thread(newest.json, *_EXPAND) == {"revision": "9001"}
    await fleet.start("newest", newest)
    assert (await fleet.readiness("old 2")).status_code == 200
    await load.goes_on(20)
    await fleet.stop("old 2")
    assert await asyncio.to_thread(newest.json, *_MIGRATE) == {"revision": "9002"}
    for name in ("new 1", "new 2", "newest"):
        ready = await fleet.readiness(name)
        assert ready.status_code == 200, ready.text
    await load.goes_on(20)
    for line in (("serve",), ("migrate",), ("organization", "list")):
        refusal = await asyncio.to_thread(fleet.old_commands.refusal, *line)
        assert f"newer than this code's {_OLD} and works with code from 9001 on" in refusal
    await fleet.stop("new 1")
    await fleet.stop("new 2")
    await load.goes_on(20)


async def test_a_forced_contraction_ends_older_gateways(compiled: dict[str, str]) -> None:
    """The older gateways stop after their calls, log the reason, and do not start again."""
    async with running_fleet(compiled) as fleet:
        await fleet.start("old", fleet.old_program)
        served, _ = fleet.running["old"]
        newest = fleet.newest.of(fleet.old_program)
        forced = await asyncio.to_thread(newest.json, "migrate", "--force")
        assert forced == {"revision": "9002"}
        assert await asyncio.to_thread(served.process.wait, 60) == 1
        said = served.log.read_text()
        assert "this worker stops when its calls have ended" in said
        assert (
            f"newer than this code's {_OLD} and works with code from 9001 on"
            in said.splitlines()[-1]
        )
