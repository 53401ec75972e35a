"""Tests which of several PostgreSQL servers the gateway uses. Each `Fence` stands for one process."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from tests.support.data_folders import data_folder
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, write_config
from tollkeeper.core.errors import StateConflict, Unavailable
from tollkeeper.database.database import Database
from tollkeeper.database.fence import Fence, FencedConnection, Rank, ServerFenced
from tollkeeper.database.migrations import migrate

pytestmark = pytest.mark.slow


@pytest.mark.smoke
def test_the_epoch_decides_before_the_timeline() -> None:
    old, promoted = Rank(0, 1, 7, 5, "a"), Rank(0, 2, 7, 5, "b")
    accepted, foreign, loaded = Rank(1, 1, 7, 5, "a"), Rank(0, 9, 8, 5), Rank(0, 9, 7, 6)
    assert promoted.is_newer_than(old)
    assert old.is_fenced_by(promoted)
    assert not promoted.is_fenced_by(old)
    assert promoted.is_fenced_by(accepted)
    assert not old.is_fenced_by(old)
    assert not old.is_fenced_by(None)
    # Timelines of two databases cannot be compared.
    for stranger in (foreign, loaded):
        for one, other in ((stranger, promoted), (promoted, stranger)):
            assert one.is_fenced_by(other)
            assert not one.is_newer_than(other)


@pytest.mark.smoke
def test_a_timeline_has_one_history() -> None:
    promoted, other, unknown = (Rank(0, 2, 7, 5, history) for history in ("b", "c", None))
    assert other.is_fenced_by(promoted)
    assert promoted.is_fenced_by(other)
    assert not other.is_newer_than(promoted)
    assert not promoted.is_fenced_by(promoted)
    # The first process on a timeline has not read its history yet.
    assert not unknown.is_fenced_by(promoted)
    assert not promoted.is_fenced_by(unknown)
    # A standby that follows is promoted to the next timeline, with a new history.
    assert not Rank(0, 3, 7, 5, "d").is_fenced_by(promoted)


class Servers:
    """Runs a primary and its standby. After a test promotes the standby, both servers accept writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.old = PostgresServer(folder / "old")
        self.old.initialise()
        self.old.start()
        migrate(self.old.conninfo)
        self.new = self.old.standby(folder / "new", "new")

    def conninfo(self, *servers: PostgresServer) -> str:
        hosts = ",".join(server.address for server in servers or (self.old, self.new))
        return f"postgresql://postgres@{hosts}/postgres"

    def fence(self, *servers: PostgresServer, file: str | None = None) -> Fence:
        """Returns the fence of a new process, which knows only the contents of the file."""
        return Fence(self.conninfo(*servers), None if file is None else self.folder / file)

    @contextmanager
    def without(self, server: PostgresServer) -> Iterator[None]:
        server.stop("immediate")
        yield
        server.start()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with data_folder() as folder:
        found = Servers(folder)
        try:
            yield found
        finally:
            found.new.stop("immediate")
            found.old.stop("immediate")


def _port(address: str) -> int:
    return int(psycopg.conninfo.conninfo_to_dict(address)["port"] or 0)


@pytest.mark.smoke
async def test_the_newest_server_is_used_in_both_orders_of_hosts(servers: Servers) -> None:
    assert _port(await servers.fence().address()) == servers.old.port
    servers.new.promote()
    for order in ((servers.old, servers.new), (servers.new, servers.old)):
        fence = servers.fence(*order)
        assert _port(await fence.survey()) == servers.new.port
        (sentence,) = fence.old_servers
        assert servers.old.address in sentence
        assert "timeline 1" in sentence
    # The surveys have marked the old server, so a process that reaches only this server refuses it.
    with servers.without(servers.new):
        for alone in (servers.fence(), servers.fence(servers.old)):
            with pytest.raises(ServerFenced, match="not the newest"):
                await alone.survey()
    # After its restart, the promoted server is used again.
    assert _port(await servers.fence().survey()) == servers.new.port


async def test_a_restarted_process_remembers_the_newest_server(servers: Servers) -> None:
    servers.new.promote()
    assert await servers.fence(servers.new, file="seen").survey()
    with servers.without(servers.new), pytest.raises(ServerFenced, match="timeline 2"):
        await servers.fence(servers.old, file="seen").survey()
    # The file names other hosts, which may be a wrong setting. So the old server was not marked.
    assert await servers.fence(servers.old).survey()
    # An unreadable file counts as a missing file.
    (servers.folder / "seen").write_text("{")
    assert await servers.fence(servers.old, file="seen").survey()


@pytest.mark.parametrize("change", [-2, -1, 1])
async def test_a_file_of_another_version_still_counts(servers: Servers, change: int) -> None:
    """Older versions wrote neither the database nor the history, and a newer version may write more."""
    servers.new.promote()
    await servers.fence(servers.new, file="seen").survey()
    file = servers.folder / "seen"
    saved = json.loads(file.read_text())
    newest = saved["newest"] + ["more"] if change > 0 else saved["newest"][:change]
    written = json.dumps(saved | {"newest": newest, "more": 1})
    file.write_text(written)
    with servers.without(servers.new), pytest.raises(ServerFenced, match="timeline 2"):
        await servers.fence(servers.old, file="seen").survey()
    file.write_text(written)
    with capture_logs() as logs:
        assert await servers.fence(servers.new, file="seen").survey()
        assert await servers.fence(servers.new, file="seen").survey()
    said = [one["event"] for one in logs if one["log_level"] == "warning"]
    assert said == ["the newest server's rank was written by an older version"] * (change < 0)
    assert json.loads(file.read_text()) == saved


async def test_a_process_that_has_seen_the_newest_server_marks_the_old_one(
    servers: Servers,
) -> None:
    with servers.without(servers.old):
        servers.new.promote()
        await servers.fence(file="seen").survey()
    with servers.without(servers.new):
        with pytest.raises(ServerFenced):
            await servers.fence(file="seen").survey()
        with pytest.raises(ServerFenced):
            await servers.fence().survey()


@pytest.mark.smoke
async def test_connections_to_an_old_server_are_closed(servers: Servers) -> None:
    database = Database(servers.conninfo(), pool_size=4, pool_timeout_s=5, statement_timeout_s=5)
    await database.open()
    where = "SELECT inet_server_port()"
    try:
        async with database.autocommit() as connection:
            assert await (await connection.execute(where)).fetchone() == (servers.old.port,)
            servers.new.promote()
            await database.close_old_connections()
            with pytest.raises(psycopg.OperationalError):
                await connection.execute(where)
            with pytest.raises(Unavailable):
                raise database._translated(psycopg.OperationalError())
        async with database.autocommit() as connection:
            assert await (await connection.execute(where)).fetchone() == (servers.new.port,)
    finally:
        await database.close()


async def test_a_connection_that_is_closed_while_the_pool_opens_it_is_not_used(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(servers.conninfo(), pool_size=4, pool_timeout_s=5, statement_timeout_s=5)
    execute = FencedConnection.execute
    closed: list[FencedConnection] = []

    async def execute_and_close(connection: FencedConnection, query: Any, *options: Any) -> Any:
        cursor = await execute(connection, query, *options)
        if query == database._session_settings and not closed:
            # The pool's last statement was answered, but the pool does not have the connection yet.
            closed.append(connection)
            connection.hang_up()
        return cursor

    monkeypatch.setattr(FencedConnection, "execute", execute_and_close)
    await database.open()
    try:
        for _ in range(3):
            async with database.autocommit() as connection:
                await connection.execute("SELECT 1")
    finally:
        await database.close()
    assert closed


async def test_two_servers_of_the_same_timeline_are_both_refused(servers: Servers) -> None:
    """Two standbys were promoted, so the timelines do not tell which server has the later calls."""
    other = servers.old.standby(servers.folder / "other", "other")
    try:
        for server in (servers.new, other):
            server.leave_primary()
            server.promote()
        with pytest.raises(ServerFenced, match="none of them is newer"):
            await servers.fence(servers.new, other).survey()
        # A server that is listed twice is one server.
        assert await servers.fence(servers.new, servers.new).survey()
    finally:
        other.stop("immediate")


def _cold_copy(server: PostgresServer, folder: Path) -> PostgresServer:
    """Copies the files of a stopped server, to a server that can be promoted."""
    shutil.copytree(server.folder, folder)
    (folder / "standby.signal").touch()
    owner = server.folder.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return PostgresServer(folder)


@pytest.mark.smoke
@pytest.mark.parametrize("same_address", [True, False])
async def test_two_copies_that_reached_the_same_timeline_are_told_apart(
    servers: Servers, same_address: bool
) -> None:
    """Two copies of one server are promoted one after the other. Calls on the first copy would be missing
    on the second one."""
    servers.new.stop()
    servers.old.stop()
    copies = [_cold_copy(servers.old, servers.folder / name) for name in ("one", "two")]
    one, two = copies
    if same_address:
        two.port = one.port
    try:
        one.start()
        one.promote()
        assert await servers.fence(one, file="seen").survey()
        running = servers.fence(one)
        assert await running.survey()
        database = Database(servers.conninfo(one), pool_size=2, seen_file=servers.folder / "seen")
        await database.open()
        async with database.autocommit() as connection:
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
        await database.close()
        # A restart keeps the timeline and its history.
        one.stop("immediate")
        one.start()
        assert await servers.fence(one, file="seen").survey()
        one.stop()
        two.start()
        two.promote()
        knowing = [servers.fence(two, file="seen")]
        if same_address:
            # The first of these has marked the second copy, which also a process without memory reads.
            knowing += [running, servers.fence(two)]
        else:
            # A process without memory cannot know the first copy, which had another address.
            assert await servers.fence(two).survey()
        for fence in knowing:
            with pytest.raises(ServerFenced, match="timeline 2, history") as refused:
                await fence.survey()
            it_has, _, newest_has = str(refused.value).partition("the newest has")
            assert re.findall("history (\\w+)", it_has) != re.findall("history (\\w+)", newest_has)
        assert (await servers.fence(two, file="seen").accept()).epoch == 1
        assert await servers.fence(two, file="seen").survey()
        two.stop()
        one.start()
        with pytest.raises(ServerFenced, match="not the newest"):
            await servers.fence(one, file="seen").survey()
    finally:
        for copy in copies:
            copy.stop("immediate")
        servers.old.start()
        servers.new.start()


@pytest.mark.smoke
async def test_a_dump_beside_the_original_is_refused_until_it_is_accepted(
    servers: Servers,
) -> None:
    """The copy is on the same server, so its timeline and its system identifier are those of the
    original."""
    assert await servers.fence(servers.old, file="seen").survey()
    dump = servers.folder / "books.dump"
    place = ("-h", "127.0.0.1", "-p", str(servers.old.port), "-U", "postgres")
    dump.touch()
    dump.chmod(0o666)
    servers.old.run("pg_dump", *place, "--format=custom", "--file", str(dump), "postgres")
    servers.old.run("createdb", *place, "copy")
    servers.old.run("pg_restore", *place, "--dbname=copy", str(dump))
    copy = servers.conninfo(servers.old).removesuffix("postgres") + "copy"
    with pytest.raises(ServerFenced, match="not the newest"):
        await Fence(copy, None).survey()
    # The original stays in use.
    assert await servers.fence(servers.old, file="seen").survey()
    assert (await Fence(copy, None).accept()).epoch == 1
    assert await Fence(copy, None).survey()
    assert await servers.fence(servers.old, file="seen").survey()


async def test_an_operator_can_go_back_to_an_old_server(
    servers: Servers, compiled: dict[str, str]
) -> None:
    servers.new.promote()
    await servers.fence(file="seen").survey()
    with pytest.raises(StateConflict, match="Exactly one"):
        await servers.fence().accept()
    config = write_config(servers.folder, servers.folder / "data", url=servers.conninfo())
    program = Program(config, servers.folder, compiled, warm=True)
    assert "Exactly one" in await asyncio.to_thread(program.refusal, "database", "accept")
    with servers.without(servers.new):
        assert "not the newest" in await asyncio.to_thread(
            program.refusal, "credit", "show", "Acme"
        )
        assert "not the newest" in await asyncio.to_thread(program.refusal, "migrate")
        accepted = await asyncio.to_thread(program.json, "database", "accept")
        assert (accepted["epoch"], accepted["timeline"]) == (1, 1)
        assert _port(await servers.fence(file="seen").survey()) == servers.old.port
    # Now the promoted server is the old server.
    assert _port(await servers.fence(file="seen").survey()) == servers.old.port
    with servers.without(servers.old), pytest.raises(ServerFenced, match="not the newest"):
        await servers.fence(file="seen").survey()


@pytest.fixture
def foreign(servers: Servers) -> Iterator[PostgresServer]:
    """Yields a server with another system identifier and an empty database."""
    server = PostgresServer(servers.folder / "foreign")
    server.initialise()
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")


async def test_another_database_is_refused_until_it_is_accepted(
    servers: Servers, foreign: PostgresServer
) -> None:
    await servers.fence(servers.old, file="seen").survey()
    migrate(foreign.conninfo)
    with pytest.raises(ServerFenced, match="system identifier"):
        await servers.fence(foreign, file="seen").survey()
    # The foreign server was not marked, so its own gateways continue to use it.
    assert await servers.fence(foreign).survey()
    with pytest.raises(ServerFenced, match="none of them is newer"):
        await servers.fence(servers.old, foreign).survey()
    assert (await servers.fence(foreign, file="seen").accept()).epoch == 1
    assert await servers.fence(foreign, file="seen").survey()


async def test_an_empty_database_in_place_of_a_lost_one_is_migrated_and_then_accepted(
    servers: Servers, foreign: PostgresServer, compiled: dict[str, str]
) -> None:
    """The data folder still contains the file that names the lost server as the newest."""
    data = servers.folder / "data"
    data.mkdir()
    await servers.fence(servers.old, file="data/newest-server.json").survey()
    config = write_config(servers.folder, data, url=servers.conninfo(foreign))
    program = Program(config, servers.folder, compiled, warm=True)
    refusal = await asyncio.to_thread(program.refusal, "database", "accept")
    assert refusal.endswith("is missing or too old: run `tollkeeper migrate` first.")
    await asyncio.to_thread(program.json, "migrate")
    for line in (("organization", "list"), ("migrate",)):
        refusal = await asyncio.to_thread(program.refusal, *line)
        assert "run `tollkeeper database accept` to use it" in refusal
    accepted = await asyncio.to_thread(program.json, "database", "accept")
    assert accepted["epoch"] == 1
    assert (await asyncio.to_thread(program.json, "organization", "list"))["data"] == []


async def test_no_schema_is_created_beside_a_server_with_a_schema(
    servers: Servers, foreign: PostgresServer, compiled: dict[str, str]
) -> None:
    address = servers.conninfo(foreign, servers.old)
    config = write_config(servers.folder, servers.folder / "data", url=address)
    program = Program(config, servers.folder, compiled, warm=True)
    assert "stop all but one" in await asyncio.to_thread(program.refusal, "migrate")
