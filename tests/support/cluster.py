"""Runs gateways on separate machines with one PostgreSQL server, behind a balancer in the client."""

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import httpx2
import psutil
import psycopg
from bench.ports import free_port

from tests.support.balancer import Balancer
from tests.support.data_folders import data_folder
from tests.support.gateway import Gateway, Tenant
from tests.support.gateway_processes import InstalledProgram, installed_program
from tests.support.judged_gateway import LIKELY, judge_answer
from tests.support.machines import Machine, Site, running_site
from tests.support.paused_answer import PausedAnswer
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, Serving, serving
from tests.support.scripted_gateway import ScriptedGateway, chat_body
from tests.support.upstream import Peer, Upstream, chat
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.migrations import migrate
from tollkeeper.setup.services import Services

LEASE_S = 2
# The timeout of an attempt, longer than a frozen or cut-off gateway can keep an account locked.
_ATTEMPT_S = 8
_JUDGE = "the-judge"
# The maximum delay of the model server, so that calls are in flight at any moment.
_THINKING_S = 0.2
_PATIENCE_S = 60
_POOL_SIZE = 8


@dataclass
class Model:
    """Answers calls after a delay, answers questions to the judge, and can pause calls."""

    # Calls of the user `paused` wait for this. A test replaces it for its next pause.
    paused: PausedAnswer = field(default_factory=PausedAnswer)
    # The number of calls that have reached the model server, without questions to the judge.
    reached: int = 0

    async def answer(self, peer: Peer) -> None:
        body = peer.request.json
        if body["model"] == _JUDGE:
            await judge_answer(LIKELY)(peer)
            return
        self.reached += 1
        if body.get("user") == "paused":
            await self.paused.verb()(peer)
            return
        await asyncio.sleep(random.random() * _THINKING_S)
        await chat()(peer)


class ModelServer(Upstream):
    """Listens on one port of several addresses."""

    def __init__(self, model: Model, port: int, hosts: tuple[str, ...]) -> None:
        super().__init__(model.answer, hosts=hosts, port=port)


@dataclass
class ClusterGateway:
    machine: Machine
    program: Program
    client: httpx2.AsyncClient
    _balancer: Balancer
    _running: tuple[Serving, ExitStack] | None = None
    _frozen: list[psutil.Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.machine.public

    async def start(self) -> None:
        stack = ExitStack()
        host, port = self.machine.listens
        served = await asyncio.to_thread(
            stack.enter_context,
            serving(self.program, "--host", host, "--port", str(port)),
        )
        self._running = served, stack
        self.recovers()

    async def stop(self) -> None:
        """Stops the gateway with SIGTERM and waits until it exits."""
        self.suffers()
        served, _ = self._served()
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(served.process.wait, _PATIENCE_S) == 0
        await self.close()

    async def kill(self) -> None:
        self.suffers()
        self._signal(signal.SIGKILL)
        await self.close()

    def freeze(self) -> None:
        self.suffers()
        self._frozen = self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._go_on()
        self.recovers()

    def _go_on(self) -> None:
        for process in self._frozen:
            process.send_signal(signal.SIGCONT)
        self._frozen = []

    async def close(self) -> None:
        if self._running is not None:
            self._go_on()
            await asyncio.to_thread(self._running[1].close)
            self._running = None

    def suffers(self) -> None:
        self._balancer.excuse(self.url)

    def recovers(self) -> None:
        # Kept connections may still turn out to be dead.
        self._balancer.excuse(self.url, longer_s=2 * _ATTEMPT_S)

    async def chat(self, tenant: Tenant | str, **fields: Any) -> httpx2.Response:
        """Makes one call to this gateway, and repeats it while the gateway cannot serve."""
        key = tenant if isinstance(tenant, str) else tenant.project_key
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    found = await self.chat_once(key, **fields)
                except httpx2.TransportError:
                    found = None
                if found is not None and found.status_code not in (502, 503, 504):
                    return found
                await asyncio.sleep(0.1)

    async def chat_once(self, key: str, **fields: Any) -> httpx2.Response:
        return await self.client.post(
            "/v1/chat/completions",
            json=chat_body(max_tokens=16, **fields),
            headers={"Authorization": f"Bearer {key}"},
        )

    def _served(self) -> tuple[Serving, ExitStack]:
        assert self._running is not None
        return self._running

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        """Signals the supervisor first, so that it does not replace workers."""
        process = self._served()[0].process
        found = [psutil.Process(process.pid), *process.children(recursive=True)]
        for each in found:
            each.send_signal(number)
        return found


@dataclass
class Cluster:
    site: Site
    postgres: PostgresServer
    upstream: Upstream
    installed: InstalledProgram
    balancer: Balancer
    model: Model
    gateways: list[ClusterGateway]

    @property
    def services(self) -> Services:
        return self.installed.services

    async def tenant(self, *, credit: int = 10**15) -> ScriptedGateway:
        gateway = Gateway(self.gateways[0].url, self.services, self.gateways[0].client)
        tenant = await gateway.make_tenant()
        scripted = ScriptedGateway(gateway, self.upstream, tenant, probe_tenant=tenant)
        await scripted.grant(credit)
        return scripted

    async def operator_is_connected(self) -> None:
        """Waits until all pooled connections of this process work again after a database failure."""
        good = 0
        async with asyncio.timeout(_PATIENCE_S):
            while good < _POOL_SIZE:
                try:
                    async with self.services.database.autocommit() as connection:
                        await connection.execute("SELECT")
                except Unavailable:
                    good = 0
                    await asyncio.sleep(0.1)
                else:
                    good += 1

    async def sql(self, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """Runs the statement, and repeats it while the database cannot be reached."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    return await asyncio.to_thread(self.postgres.query, statement, *parameters)
                except psycopg.OperationalError:
                    await asyncio.sleep(0.1)

    async def until(self, statement: LiteralString, *parameters: object) -> None:
        """Waits until the statement returns a row."""
        async with asyncio.timeout(_PATIENCE_S):
            while not await self.sql(statement, *parameters):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def processes_of(self, gateway: ClusterGateway) -> list[UUID]:
        """Returns the ids of the leases of the gateway's workers."""
        pids = [child.pid for child in gateway._served()[0].workers()]
        return [row[0] for row in await self.sql(_PROCESSES, pids)]

    def kill_database(self) -> None:
        pid = (self.postgres.folder / "postmaster.pid").read_text().partition("\n")[0]
        os.kill(int(pid), signal.SIGKILL)

    async def start_database(self) -> None:
        """Starts the server, with retries: it cannot start before all its killed processes have ended."""
        for _ in range(40):
            try:
                await asyncio.to_thread(self.postgres.start)
            except subprocess.CalledProcessError:
                await asyncio.sleep(0.25)
            else:
                return
        raise AssertionError("the database did not start again")


_PROCESSES: LiteralString = "SELECT id FROM processes WHERE pid = ANY(%s)"


@asynccontextmanager
async def running_cluster(compiled: dict[str, str], *, gateways: int = 3) -> AsyncIterator[Cluster]:
    ports = {"database": free_port(), "upstream": free_port()}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(data_folder())
        site = await stack.enter_async_context(running_site(gateways, ports))  # type: ignore[arg-type]
        hosts = ("127.0.0.1", *site.hosts)
        postgres = PostgresServer(folder / "postgres", ports["database"], hosts)
        postgres.initialise()
        postgres.start()
        stack.callback(postgres.stop, "immediate")
        migrate(postgres.conninfo)
        model = Model()
        upstream = await stack.enter_async_context(ModelServer(model, ports["upstream"], hosts))
        installed = await stack.enter_async_context(
            installed_program(
                folder, folder, f"postgresql://postgres@{postgres.address}/postgres", upstream,
                compiled, changed_constants={"database.processes.LEASE_S": LEASE_S}, server={"grace_s": 10},
                limits={"requests_per_minute": 1_000_000, "concurrency": 1000},
                judge={"backend": "scripted", "model": _JUDGE},
            )
        )  # fmt: skip
        balancer = await stack.enter_async_context(
            Balancer([], patience_s=_PATIENCE_S, timeout_s=_ATTEMPT_S)
        )
        cluster = Cluster(site, postgres, upstream, installed, balancer, model, [])
        for machine in site.machines:
            client = await stack.enter_async_context(
                httpx2.AsyncClient(base_url=machine.public, timeout=_PATIENCE_S)
            )
            program = _program_on(machine, installed.program, folder, ports)
            gateway = ClusterGateway(machine, program, client, balancer)
            stack.push_async_callback(gateway.close)
            cluster.gateways.append(gateway)
        await asyncio.gather(*(gateway.start() for gateway in cluster.gateways))
        balancer.members += [gateway.url for gateway in cluster.gateways]
        yield cluster


def _program_on(machine: Machine, program: Program, folder: Path, ports: dict[str, int]) -> Program:
    """Returns the same program with the addresses at which this machine reaches the servers."""
    text = program.config.read_text()
    for role, (host, port) in machine.reaches.items():
        text = text.replace(f"127.0.0.1:{ports[role]}", f"{host}:{port}")
    config = folder / f"{machine.name.replace(' ', '-')}.toml"
    config.write_text(text)
    return Program(config, folder, program.environment, wrapper=machine.wrapper)
