"""Runs a real HA cluster on the loopback: PostgreSQL servers that Patroni manages, and an etcd.

Both programs come from Debian's packages `patroni` and `etcd-server`. There is no watchdog device; a test turns
a node off where a watchdog would.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
import pytest
from bench.ports import free_port

from tests.support.postgres_server import PostgresServer, server_account
from tests.support.program import eventually
from tollkeeper.setup.embedded.postgres_programs import find_programs

_PACKAGES = {"patroni": "patroni", "patronictl": "patroni", "etcd": "etcd-server"}
# Patroni's smallest values, so that a failover takes seconds and not half a minute.
TIMES = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
_WITHIN_S = 120


def programs() -> dict[str, str]:
    """Returns the paths of Patroni's and etcd's programs. Skips the test if a package is missing."""
    found = {name: shutil.which(name) for name in _PACKAGES}
    missing = sorted({_PACKAGES[name] for name, path in found.items() if path is None})
    if missing:
        pytest.skip(f"Debian's packages are missing: {', '.join(missing)}")
    return {name: path for name, path in found.items() if path is not None}


@dataclass
class Node:
    """One machine of the cluster: a Patroni and its PostgreSQL."""

    name: str
    server: PostgresServer
    config: Path
    rest: str
    _program: str
    _process: psutil.Popen | None = None

    def start(self) -> None:
        owner = server_account()
        with (self.config.parent / f"{self.name}.log").open("ab") as log:
            self._process = psutil.Popen(
                [self._program, str(self.config)],
                cwd="/",
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=None if owner is None else owner.uid,
                group=None if owner is None else owner.gid,
                extra_groups=None if owner is None else [],
            )

    def stop(self) -> None:
        """Stops the machine in order: PostgreSQL writes everything and tells its standbys."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(_WITHIN_S)

    def kill(self) -> None:
        """Turns the machine off, even if it is frozen."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(_WITHIN_S)
        eventually(lambda: not self._processes())

    def freeze(self) -> None:
        for process in self._processes():
            process.suspend()

    def freeze_patroni(self) -> None:
        """PostgreSQL goes on, and accepts writes even when another node has become the leader."""
        assert self._process is not None
        self._process.suspend()

    def _processes(self) -> list[psutil.Process]:
        """Returns Patroni first, so that it starts nothing while its PostgreSQL is signalled."""
        found: list[psutil.Process] = []
        if self._process is not None and self._process.poll() is None:
            found.append(psutil.Process(self._process.pid))
        with suppress(FileNotFoundError, IndexError, psutil.NoSuchProcess):
            found += self.server.processes()
        return [one for one in found if _lives(one)]

    def is_leader(self) -> bool:
        """Asks what a load balancer asks."""
        try:
            return httpx2.get(f"{self.rest}/primary", timeout=2).status_code == 200
        except httpx2.TransportError:
            return False

    def log(self) -> str:
        return (self.config.parent / f"{self.name}.log").read_text()[-4000:]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass
class PatroniCluster:
    folder: Path
    # Patroni's settings for the whole cluster, such as `synchronous_mode`.
    settings: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._programs = programs()
        self.folder.chmod(0o711)
        self._etcd = f"127.0.0.1:{free_port()}"
        self._etcd_process: psutil.Popen | None = None
        for name in ("a", "b", "c"):
            self.nodes.append(self._node(name))

    @property
    def url(self) -> str:
        """Names all nodes, as docs/database.md says."""
        hosts = ",".join(node.server.address for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres"

    @property
    def leader(self) -> Node:
        """Waits until there is one leader."""
        deadline = time.monotonic() + _WITHIN_S
        while len(leaders := self.leaders()) != 1:
            assert time.monotonic() < deadline, [node.log() for node in self.nodes]
            time.sleep(0.1)
        return leaders[0]

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes if node.is_leader()]

    def start(self) -> None:
        """Starts the first node, and then the others as its standbys."""
        self.start_etcd()
        for number, node in enumerate(self.nodes):
            node.start()
            if number == 0:
                assert self.leader is node
        self.until_replicated()

    def start_etcd(self) -> None:
        peer = f"http://127.0.0.1:{free_port()}"
        with (self.folder / "etcd.log").open("ab") as log:
            self._etcd_process = psutil.Popen(
                [self._programs["etcd"], "--data-dir", str(self.folder / "etcd"),
                 "--listen-client-urls", f"http://{self._etcd}",
                 "--advertise-client-urls", f"http://{self._etcd}",
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"default={peer}", "--enable-v2=false"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        eventually(self._etcd_answers)

    def _etcd_answers(self) -> bool:
        try:
            return httpx2.get(f"http://{self._etcd}/health", timeout=2).is_success
        except httpx2.TransportError:
            return False

    def freeze_etcd(self) -> None:
        assert self._etcd_process is not None
        self._etcd_process.suspend()

    def thaw_etcd(self) -> None:
        assert self._etcd_process is not None
        self._etcd_process.resume()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._etcd_process is not None:
            self._etcd_process.kill()
            self._etcd_process.wait()

    def until_replicated(self, standbys: int = 2) -> None:
        """Waits until the leader has this many standbys that stream, one of them as the synchronous standby."""
        streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"

        def is_replicated() -> bool:
            try:
                found = self.leader.server.query(streaming)
            except psycopg.OperationalError:
                return False
            return found == [(standbys,)] and (
                standbys == 0 or self.synchronous_standby() is not None
            )

        eventually(is_replicated, within_s=_WITHIN_S)

    def synchronous_standby(self) -> Node | None:
        members = httpx2.get(f"{self.leader.rest}/cluster", timeout=5).json()["members"]
        found = [member["name"] for member in members if member["role"] == "sync_standby"]
        return next((node for node in self.nodes if node.name in found), None)

    def switch_over(self, standby: Node) -> None:
        self._control("switchover", standby, check=True)

    def force(self, candidate: Node) -> None:
        """Asks for a failover to this node. Patroni may refuse."""
        self._control("failover", candidate, check=False)

    def _control(self, command: str, candidate: Node, *, check: bool) -> None:
        line = [self._programs["patronictl"], "-c", str(self.nodes[0].config), command]
        subprocess.run(
            [*line, "--force", "--candidate", candidate.name],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_WITHIN_S, check=check,
        )  # fmt: skip

    def _node(self, name: str) -> Node:
        place = self.folder / name
        place.mkdir(mode=0o700)
        owner = server_account()
        if owner is not None:
            os.chown(place, owner.uid, owner.gid)
        server = PostgresServer(place / "data")
        rest = f"127.0.0.1:{free_port()}"
        config = self.folder / f"{name}.yml"
        # JSON is YAML, too.
        config.write_text(json.dumps(self._config(name, server, rest)))
        return Node(name, server, config, f"http://{rest}", self._programs["patroni"])

    def _config(self, name: str, server: PostgresServer, rest: str) -> dict[str, Any]:
        roles = {role: {"username": "postgres"} for role in ("superuser", "replication", "rewind")}
        return {
            "scope": "books",
            "name": name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"hosts": self._etcd},
            "watchdog": {"mode": "off"},
            "bootstrap": {
                "dcs": {
                    **TIMES,
                    **self.settings,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_keep_size": "128MB"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": server.address,
                "connect_address": server.address,
                "data_dir": str(server.folder),
                "bin_dir": str(find_programs(server_account())),
                "authentication": roles,
                "pg_hba": [
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
                "pgpass": str(server.folder.parent / "pgpass"),
                "parameters": {"unix_socket_directories": "", "max_connections": "200"},
            },
        }


@contextmanager
def running_patroni(folder: Path, **settings: Any) -> Iterator[PatroniCluster]:
    cluster = PatroniCluster(folder, settings)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster
