"""Runs a separate PostgreSQL server on a TCP port: a primary, a standby or a restored server."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
from bench.ports import free_port

from tests.support.program import eventually
from tollkeeper.setup.embedded.postgres_account import Account, ensure_account
from tollkeeper.setup.embedded.postgres_programs import find_programs

_WITHIN_S = 120


@dataclass
class PostgresServer:
    """Manages one server. Every account must be able to enter `folder` (see `data_folder`)."""

    folder: Path
    port: int = field(default_factory=free_port)
    # Addresses of this machine at which clients reach the server.
    hosts: tuple[str, ...] = ("127.0.0.1",)

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def address(self) -> str:
        """Returns the host and port, as a part of a URL with several hosts."""
        return f"127.0.0.1:{self.port}"

    def initialise(self) -> None:
        self._make_folder(self.folder)
        self.run("initdb", "--auth=trust", "--encoding=utf8", "--locale=C", "--username=postgres",
                 "-D", str(self.folder))  # fmt: skip
        access = self.folder / "pg_hba.conf"
        allowed = [f"host all all {host}/24 trust\n" for host in self.hosts[1:]]
        added = "host replication all 127.0.0.1/32 trust\n" + "".join(allowed)
        access.write_text(access.read_text() + added)
        self.configure(wal_level="replica", max_wal_senders="4", hot_standby="on")

    def configure(self, **settings: str) -> None:
        """Adds settings, which take effect at the next start or reload."""
        with (self.folder / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def start(self) -> None:
        listen = f"-c listen_addresses={','.join(self.hosts)} -p {self.port}"
        options = f"{listen} -c unix_socket_directories=''"
        log = str(self.folder / "server.log")
        self.run("pg_ctl", "start", "-w", "-t", str(_WITHIN_S), "-D", str(self.folder),
                 "-l", log, "-o", options)  # fmt: skip

    def stop(self, mode: str = "fast") -> None:
        """Stops the server. The mode `immediate` simulates a crash: the server writes nothing more."""
        if (self.folder / "postmaster.pid").exists():
            self.run("pg_ctl", "stop", "-w", "-D", str(self.folder), "-m", mode)

    def pause(self) -> None:
        """Freezes all processes of the server: connections stay open and get no answer."""
        for process in self.processes():
            process.suspend()

    def resume(self) -> None:
        for process in reversed(self.processes()):
            process.resume()

    def processes(self) -> list[psutil.Process]:
        """Returns the postmaster first, so that it is suspended before it can start another process."""
        pid = int((self.folder / "postmaster.pid").read_text().splitlines()[0])
        postmaster = psutil.Process(pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "-w", "-D", str(self.folder))

    def reload(self) -> None:
        self.run("pg_ctl", "reload", "-D", str(self.folder))

    def back_up_to(self, folder: Path, *options: str) -> None:
        self._make_folder(folder)
        self.run("pg_basebackup", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres",
                 "-D", str(folder), "--checkpoint=fast", *options)  # fmt: skip

    def standby(self, folder: Path, name: str) -> "PostgresServer":
        """Starts a standby that follows this server."""
        self.back_up_to(folder, "--write-recovery-conf")
        standby = PostgresServer(folder)
        # The primary identifies the standby by this name.
        standby.configure(cluster_name=name)
        standby.start()
        eventually(lambda: bool(self.query("SELECT count(*) FROM pg_stat_replication")[0][0]))
        return standby

    def leave_primary(self) -> None:
        """Ends the replication from the primary to this standby."""
        # pg_basebackup has written the primary's address to this file.
        with (self.folder / "postgresql.auto.conf").open("a") as file:
            file.write("primary_conninfo = ''\n")
        self.reload()
        eventually(lambda: not self.query("SELECT pid FROM pg_stat_wal_receiver"))

    def query(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(statement.encode(), parameters or None).fetchall()

    def run(self, program: str, *arguments: str) -> None:
        account = server_account()
        subprocess.run(
            [str(find_programs(account) / program), *arguments],
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            # The server inherits the output streams of pg_ctl, so a pipe to them would stay open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            timeout=_WITHIN_S,
        )

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        account = server_account()
        if account is not None:
            os.chown(folder, account.uid, account.gid)


def server_account() -> Account | None:
    return ensure_account() if os.geteuid() == 0 else None
