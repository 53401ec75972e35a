"""Provides machines for gateways: network namespaces, each with its own addresses and links.

A machine has three links: to the database, to the model server and to its callers. A link that is
cut loses every packet silently, as a broken switch does: both ends send to a hardware address that
does not exist, so routes and interfaces stay unchanged. If namespaces are not allowed, a machine is
an address of the loopback interface, and its links are relays that can be cut.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from bench.ports import free_port
from psycopg.conninfo import conninfo_to_dict

from tests.journeys.clients.debian import DebianProgram, debian_program
from tests.journeys.clients.environments import NotInstalled
from tests.support.stream_server import StreamServer

Role = Literal["database", "upstream", "callers"]
ROLES: tuple[Role, ...] = ("database", "upstream", "callers")
# The value `relays` selects relays even if namespaces are allowed.
_WANTED = "TOLLKEEPER_TEST_MACHINES"
_PORT = 8080
_NOBODY = "02:00:00:00:00:01"


@dataclass(frozen=True)
class Machine:
    """Describes a machine. `reaches` has the host and port of each server as seen from the machine.
    Callers use `public`, and the gateway has to listen at `listens`."""

    name: str
    wrapper: tuple[str, ...]
    reaches: dict[Role, tuple[str, int]]
    listens: tuple[str, int]
    public: str
    _cut: Callable[[Role, bool], None]

    def cut(self, role: Role) -> None:
        self._cut(role, True)

    def join(self, role: Role) -> None:
        self._cut(role, False)


@dataclass(frozen=True)
class Site:
    machines: list[Machine]
    # Addresses of the host that the machines can reach.
    hosts: tuple[str, ...]
    # Says whether the machines are namespaces or relays, and why.
    kind: str


@asynccontextmanager
async def running_site(count: int, ports: dict[Role, int]) -> AsyncIterator[Site]:
    """Creates `count` machines. `ports` are the database's and the model server's ports on this host."""
    if os.environ.get(_WANTED) == "relays":
        async with _relayed_site(count, ports, "relays, as asked for") as site:
            yield site
        return
    try:
        network = _Network()
    except (NotInstalled, OSError, subprocess.CalledProcessError) as exc:
        said = getattr(exc, "stderr", b"") or str(exc).encode()
        reason = said.decode(errors="replace").strip().splitlines()[-1]
        kind = f"relays on the loopback, because namespaces are not allowed: {reason}"
        async with _relayed_site(count, ports, kind) as site:
            yield site
        return
    with network:
        machines = [network.machine(number, ports) for number in range(count)]
        yield Site(machines, network.hosts, "network namespaces")


class _Network:
    """Creates namespaces with pairs of virtual interfaces, all in one /24 of the range for benchmarks."""

    def __init__(self) -> None:
        """Raises if this process may not create namespaces."""
        libraries = ("libbpf1", "libelf1", "libmnl0", "libcap2", "libtirpc3", "libxtables12")
        self._ip: DebianProgram = debian_program("iproute2", "bin/ip", *libraries)
        self._token = secrets.token_hex(3)
        self._prefix = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        self._stack = ExitStack()
        self._hosts: list[str] = []
        probe = f"tk{self._token}"
        self._run("netns", "add", probe)
        self._run("netns", "delete", probe)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._hosts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def machine(self, number: int, ports: dict[Role, int]) -> Machine:
        name = f"tk{self._token}-{number}"
        self._run("netns", "add", name)
        # Deleting the namespace also deletes its interfaces and their peers on the host.
        self._stack.callback(self._run, "netns", "delete", name)
        self._run("-n", name, "link", "set", "lo", "up")
        inside, outside = {}, {}
        for place, role in enumerate(ROLES):
            first = 4 * (len(ROLES) * number + place)
            inside[role], outside[role] = (f"{self._prefix}.{first + end}" for end in (2, 1))
            ends = f"tk{self._token}{number}{role[0]}", role
            self._run("link", "add", ends[0], "type", "veth", "peer", "name", role, "netns", name)
            self._run("address", "add", f"{outside[role]}/30", "dev", ends[0])
            self._run("link", "set", ends[0], "up")
            self._run("-n", name, "address", "add", f"{inside[role]}/30", "dev", role)
            self._run("-n", name, "link", "set", role, "up")
        self._hosts += outside.values()

        def cut(role: Role, is_cut: bool) -> None:
            interface = f"tk{self._token}{number}{role[0]}"
            for place, address, device in (
                ((), inside[role], interface),
                (("-n", name), outside[role], role),
            ):
                found = (*place, "neighbour", "replace" if is_cut else "delete", address)
                nobody = ("lladdr", _NOBODY, "nud", "permanent") if is_cut else ()
                self._run(*found, *nobody, "dev", device)

        return Machine(
            name,
            (str(self._ip.program), "netns", "exec", name),
            {role: (outside[role], port) for role, port in ports.items()},
            (inside["callers"], _PORT),
            f"http://{inside['callers']}:{_PORT}",
            cut,
        )

    def _run(self, *words: str) -> None:
        subprocess.run(
            [str(self._ip.program), *words],
            env={**os.environ, **self._ip.environment},
            check=True,
            capture_output=True,
            timeout=20,
        )


@asynccontextmanager
async def _relayed_site(count: int, ports: dict[Role, int], kind: str) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        machines = []
        for number in range(count):
            own = free_port()
            relays: dict[Role, Relay] = {}
            for role, port in {**ports, "callers": own}.items():
                host = f"127.0.{number + 1}.1" if role == "callers" else "127.0.0.1"
                relays[role] = await stack.enter_async_context(Relay((host, port)))
            machines.append(
                Machine(
                    f"machine {number}",
                    (),
                    {role: ("127.0.0.1", relays[role].port) for role in ports},
                    (f"127.0.{number + 1}.1", own),
                    f"http://127.0.0.1:{relays['callers'].port}",
                    lambda role, is_cut, relays=relays: relays[role].cut(is_cut),  # type: ignore[misc]
                )
            )
        yield Site(machines, (), kind)


class Relay(StreamServer):
    """Relays bytes in both directions. While it is cut, it keeps the bytes and answers nothing."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        """`target` is a host and a port, or the path of a socket."""
        super().__init__(self._connect)
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()

    async def __aexit__(self, *_: object) -> None:
        self.cut(False)
        await super().__aexit__()

    def cut(self, is_cut: bool) -> None:
        if is_cut:
            self._whole.clear()
        else:
            self._whole.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            if isinstance(self._target, Path):
                there = await asyncio.open_unix_connection(str(self._target))
            else:
                there = await asyncio.open_connection(*self._target)
        except OSError:
            return
        passing = (
            asyncio.ensure_future(self._pass_on(reader, there[1])),
            asyncio.ensure_future(self._pass_on(there[0], writer)),
        )
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in passing:
                direction.cancel()
            there[1].transport.abort()
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
            await self._whole.wait()


def database_relay(conninfo: str) -> Relay:
    """Returns a relay from a port to the socket of this database."""
    address = conninfo_to_dict(conninfo)
    return Relay(Path(str(address["host"])) / f".s.PGSQL.{address.get('port', 5432)}")
