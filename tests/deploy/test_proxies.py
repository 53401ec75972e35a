"""Tests nginx, Caddy and HAProxy with our files in front of real gateways and a real console: streams arrive
piece by piece, a call is sent to one gateway only, a rolling restart fails no call, and only operators reach
the console."""

import asyncio
import os
import random
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.journeys.clients.debian import DebianProgram, debian_program_or_skip
from tests.support import stripe_events as stripe
from tests.support.certificates import make_certificate
from tests.support.console_site import TOKEN, serving_console
from tests.support.data_folders import data_folder
from tests.support.databases import own_database
from tests.support.gateway import Gateway
from tests.support.gateway_processes import installed_program
from tests.support.paused_answer import PausedAnswer
from tests.support.program import Program, Serving, serving
from tests.support.proof import Proof
from tests.support.scripted_gateway import COST, ScriptedGateway, chat_body, scripted_settings
from tests.support.upstream import Peer, Upstream, chat
from tollkeeper.entry.descriptors import hard_limit, http_limits
from tollkeeper.entry.operator_listener import OperatorListener, Readiness
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import bind

pytestmark = pytest.mark.slow

_DEPLOY = Path(__file__).parents[2] / "deploy"
_EACH = pytest.mark.parametrize("kind", ["nginx", "caddy", "haproxy"])
_CALLERS = 16
_ROUNDS = 3
_STOP_DELAY_S = "8"  # The value of deploy/tollkeeper.toml.
_SETTLE_S = 5  # The pause between two restarts.
_PATIENCE_S = 20
_WITHIN_S = 60
# As many streams have to be open at once, of as many calls.
_OPEN_STREAMS = 300
_OPEN_CALLS = 2 * _OPEN_STREAMS
_OPERATOR, _CUSTOMER = "127.0.0.1", "127.0.0.9"


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass(frozen=True)
class Place:
    """Two addresses of this machine. The gateways at both addresses listen on the same ports. The console has
    the first address."""

    public: int = field(default_factory=_free_port)
    operator: int = field(default_factory=_free_port)
    console: int = field(default_factory=_free_port)
    hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.12")

    def in_file(self, text: str) -> str:
        for declared, host in zip(("10.0.0.11", "10.0.0.12"), self.hosts, strict=True):
            text = text.replace(f"{declared}:8080", f"{host}:{self.public}")
        text = text.replace("10.0.0.11:8082", f"{self.hosts[0]}:{self.console}")
        # In these tests, only this address is in the network of the operators.
        text = text.replace("10.0.0.0/8", _OPERATOR)
        text = text.replace("check port 8081", f"check port {self.operator}")
        return text.replace("health_port 8081", f"health_port {self.operator}")


class Proxy:
    """A proxy with our file, in which the tests replace addresses, certificates and local paths."""

    def __init__(self, folder: Path, place: Place, *, for_customers: bool = False) -> None:
        _, self.certificate = make_certificate(folder)
        self.folder = folder
        self.port = _free_port()
        self.console_port = _free_port()
        self.place = place
        self._for_customers = for_customers

    def nginx(self) -> tuple[DebianProgram, list[str], list[str]]:
        """Returns the program, its arguments to check its file, and its arguments to run."""
        text = (_DEPLOY / "nginx" / "nginx.conf").read_text()
        if self._for_customers:
            text = re.sub(r"^ +location / \{\n +allow .*?\}\n", "", text, flags=re.M | re.S)
            text = re.sub(r"^( +)# (?=location |  |\}$)", r"\1", text, flags=re.M)
        text = self.place.in_file(text)
        for port in (self.port, self.console_port):
            text = text.replace("listen 443 ", f"listen 127.0.0.1:{port} ", 1)
        for name in ("gateway", "console"):
            text = text.replace(f"/etc/nginx/tls/{name}.crt", str(self.certificate))
            key = str(self.certificate.with_suffix(".key"))
            text = text.replace(f"/etc/nginx/tls/{name}.key", key)
        places = "".join(
            f"{name}_temp_path {self.folder / name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = text.replace("http {", f"http {{\naccess_log off;\n{places}")
        text = f"daemon off;\nmaster_process off;\npid {self.folder / 'pid'};\n{text}"
        config = self.folder / "nginx.conf"
        config.write_text(text)
        line = ["-p", str(self.folder), "-e", "stderr", "-c", str(config)]
        return debian_program_or_skip("nginx", "usr/sbin/nginx"), ["-t", *line], line

    def caddy(self) -> tuple[DebianProgram, list[str], list[str]]:
        text = (_DEPLOY / "caddy" / "Caddyfile").read_text()
        if self._for_customers:
            text = "".join(text.rpartition("\thandle {\n\t\trespond 403\n\t}\n")[::2])
            text = re.sub(r"^\t# (?=@|handle |\t|\}$)", "\t", text, flags=re.M)
        text = self.place.in_file(text)
        files = f"{self.certificate} {self.certificate.with_suffix('.key')}"
        site = f"https://127.0.0.1:{self.port} {{\n\ttls {files}"
        text = text.replace("gateway.example.com {", site)
        other = f"https://127.0.0.1:{self.console_port} {{\n\ttls {files}"
        text = text.replace("\nconsole.example.com {", f"\n{other}")
        text = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text
        config = self.folder / "Caddyfile"
        config.write_text(text)
        line = ["--config", str(config), "--adapter", "caddyfile"]
        return debian_program_or_skip("caddy", "usr/bin/caddy"), ["validate", *line], ["run", *line]

    def haproxy(self) -> tuple[DebianProgram, list[str], list[str]]:
        text = (_DEPLOY / "haproxy" / "haproxy.cfg").read_text()
        text = text.partition("# PostgreSQL's leader")[0]
        if self._for_customers:
            text = text.replace("  http-request deny unless operators or webhook\n", "")
            text = text.replace("  # http-request deny if", "  http-request deny if")
        text = self.place.in_file(text)
        pem = self.folder / "both.pem"
        key = self.certificate.with_suffix(".key")
        pem.write_text(self.certificate.read_text() + key.read_text())
        binds = ",".join(f"127.0.0.1:{port}" for port in (self.port, self.console_port))
        text = re.sub(r"bind :443 ssl (crt \S+ )+", f"bind {binds} ssl crt {pem} ", text)
        # The tests have one host name, and a port for each site.
        text = re.sub(r"acl is_console .*", f"acl is_console dst_port {self.console_port}", text)
        text = re.sub(r"^  (user|group) haproxy\n", "", text, flags=re.M)
        # HAProxy does not start if this process may not open so many files.
        text = text.replace("maxconn 20000", f"maxconn {min(20_000, hard_limit() // 3)}")
        config = self.folder / "haproxy.cfg"
        config.write_text(text)
        line = ["-f", str(config)]
        return debian_program_or_skip("haproxy", "usr/sbin/haproxy"), ["-c", *line], ["-db", *line]

    @asynccontextmanager
    async def running(self, kind: str) -> AsyncIterator[httpx2.AsyncClient]:
        kinds: dict[str, Callable[[], tuple[DebianProgram, list[str], list[str]]]]
        kinds = {"nginx": self.nginx, "caddy": self.caddy, "haproxy": self.haproxy}
        program, check, run = await asyncio.to_thread(kinds[kind])
        home = {"HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder)}
        environment = {**os.environ, **program.environment, **home}
        checked = await asyncio.to_thread(
            subprocess.run,
            [str(program.program), *check],
            env=environment,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr.decode()
        output = (self.folder / "output").open("wb")
        process = await asyncio.create_subprocess_exec(
            program.program, *run, env=environment, stdout=output, stderr=output
        )
        try:
            await self._until_it_listens(process)
            async with self.client(self.port) as client:
                yield client
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(_PATIENCE_S):
                await process.wait()
            output.close()

    def client(self, port: int, source: str = _OPERATOR) -> httpx2.AsyncClient:
        """Creates a client that connects from the address `source`."""
        verify = ssl.create_default_context(cafile=self.certificate)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        transport = httpx2.AsyncHTTPTransport(verify=verify, local_address=source, limits=limits)
        address = f"https://127.0.0.1:{port}"
        return httpx2.AsyncClient(base_url=address, transport=transport, timeout=_WITHIN_S)

    async def _until_it_listens(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                assert process.returncode is None, (self.folder / "output").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return


async def _is_ready() -> Readiness:
    return Readiness({}, ready=True)


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    return {"limits": {"requests_per_minute": 1_000_000, "concurrency": 2 * _OPEN_CALLS}}


@pytest.fixture
def place(scripted: ScriptedGateway) -> Place:
    """Returns a place with the public port of the scripted gateway, which has the first address."""
    return Place(public=int(scripted.gateway.base_url.rpartition(":")[2]))


@asynccontextmanager
async def _ready(host: str, place: Place) -> AsyncIterator[None]:
    server = HttpServer(OperatorListener(_is_ready, dict, ""), http_limits())
    await server.start(bind(host, place.operator, setting="test"))
    yield
    await server.drain(0)


@_EACH
async def test_a_piece_arrives_when_it_is_made(
    kind: str, scripted: ScriptedGateway, place: Place, tmp_path: Path
) -> None:
    """Checks this while the other gateway is down."""
    answer = PausedAnswer()
    proxy = Proxy(tmp_path, place)
    async with _ready(place.hosts[0], place), proxy.running(kind) as client:
        # By then, Caddy and HAProxy have checked the health of both gateways.
        await asyncio.sleep(0.3)
        for _ in range(4):
            plain = await _call(client, scripted)
            assert plain.status_code == 200, plain.text
        scripted.upstream.play(answer.verb())
        async with (
            asyncio.timeout(_WITHIN_S),
            client.stream(
                "POST",
                "/v1/chat/completions",
                json=chat_body(stream=True),
                headers=scripted.tenant.as_customer,
            ) as response,
        ):
            assert response.status_code == 200
            lines = response.aiter_lines()
            # The answer cannot end yet. A proxy that buffers answers would not send this piece.
            async for line in lines:
                if '"1 "' in line:
                    break
            answer.may_end.set()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        scripted.upstream.play(chat())
        elsewhere = await client.get("/metrics")
        assert elsewhere.status_code == 404


@_EACH
async def test_a_hanging_gateway_leaves_room_for_many_streams(
    kind: str, scripted: ScriptedGateway, place: Place, tmp_path: Path
) -> None:
    """The other gateway takes connections and never answers. nginx sends half of the calls to it, because it
    has no health checks."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    answer, proxy = PausedAnswer(), Proxy(tmp_path, place)
    scripted.upstream.play(*[answer.verb()] * _OPEN_CALLS)
    hanging = await asyncio.start_server(hang, place.hosts[1], place.public)
    async with hanging, _ready(place.hosts[0], place), proxy.running(kind) as client:
        begun = Begun()
        streams = [
            asyncio.create_task(_open_stream(client, scripted, begun)) for _ in range(_OPEN_CALLS)
        ]
        async with asyncio.timeout(_WITHIN_S):
            await begun.enough.wait()
            assert begun.statuses == [200] * len(begun.statuses)
            answer.may_end.set()
            for _, stream in zip(range(_OPEN_STREAMS), asyncio.as_completed(streams), strict=False):
                assert await stream == "data: [DONE]"
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    shown = (tmp_path / "output").read_text()
    assert "not enough" not in shown
    scripted.upstream.play(chat())


@dataclass
class Begun:
    """Contains the statuses of the answers whose first line has arrived."""

    statuses: list[int] = field(default_factory=list)
    # Set when enough streams have begun, or one call has failed.
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, status: int) -> None:
        self.statuses.append(status)
        if len(self.statuses) >= _OPEN_STREAMS or status != 200:
            self.enough.set()


async def _open_stream(client: httpx2.AsyncClient, scripted: ScriptedGateway, begun: Begun) -> str:
    """Reads a whole stream and returns its last line."""
    async with client.stream(
        "POST",
        "/v1/chat/completions",
        json=chat_body(stream=True, max_tokens=1),
        headers=scripted.tenant.as_customer,
    ) as response:
        last = ""
        async for line in response.aiter_lines():
            if not last:
                begun.note(response.status_code)
            last = line or last
        return last


@_EACH
async def test_a_call_that_was_sent_is_not_sent_again(
    kind: str, scripted: ScriptedGateway, place: Place, tmp_path: Path
) -> None:
    """The second server aborts the connection of each request, which may already have been charged."""
    taken = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += bool(await reader.read(1))
        writer.transport.abort()

    other = await asyncio.start_server(take, place.hosts[1], place.public)
    proxy = Proxy(tmp_path, place)
    async with other, _ready("0.0.0.0", place), proxy.running(kind) as client:
        statuses = [await _status(client, scripted, kind) for _ in range(8)]
    assert taken > 0
    assert sorted(statuses) == [200] * (len(statuses) - taken) + [502] * taken


async def _status(client: httpx2.AsyncClient, scripted: ScriptedGateway, kind: str) -> int:
    try:
        return (await _call(client, scripted)).status_code
    except httpx2.RemoteProtocolError:
        # HAProxy closes a client's connection that already had an answer, instead of sending 502.
        assert kind == "haproxy"
        return 502


@asynccontextmanager
async def _console(
    kind: str, scripted: ScriptedGateway, proxy: Proxy, data_dir: Path
) -> AsyncIterator[tuple[httpx2.AsyncClient, httpx2.AsyncClient]]:
    """Runs the console behind the proxy. Yields a client in the network of the operators and one outside."""
    secret = proxy.folder / "stripe"
    secret.write_text(stripe.SECRET)
    settings = scripted_settings(
        data_dir,
        scripted.upstream.url,
        console={"trusted_proxies": ["127.0.0.1"]},
        payments={"webhook_secrets": {"live": [f"file:{secret}"]}},
    )
    async with (
        serving_console(settings, scripted.gateway.services, port=proxy.place.console),
        proxy.running(kind),
        proxy.client(proxy.console_port) as operator,
        proxy.client(proxy.console_port, _CUSTOMER) as outsider,
    ):
        yield operator, outsider


@_EACH
async def test_operators_reach_the_console_and_others_only_its_webhook(
    kind: str, scripted: ScriptedGateway, place: Place, data_dir: Path, tmp_path: Path
) -> None:
    proxy = Proxy(tmp_path, place)
    async with _console(kind, scripted, proxy, data_dir) as (operator, outsider):
        signed_in = await operator.post("/sign-in", data={"token": TOKEN})
        assert signed_in.status_code == 303, signed_in.text
        assert "secure" in signed_in.headers["set-cookie"].lower()
        page = await operator.get("/activity")
        assert page.status_code == 200
        assert "<title>Activity" in page.text
        async with (
            asyncio.timeout(_WITHIN_S),
            operator.stream("GET", "/activity/tail") as tail,
        ):
            lines = tail.aiter_lines()
            assert await anext(lines) == "retry: 1000"
            called = await _call(scripted.gateway.client, scripted)
            # The tail ends a minute later. A proxy that buffers answers would not send this line.
            expected = f"data: {called.headers['x-request-id']}"
            async for line in lines:
                if line == expected:
                    break
        for path in ("/", "/sign-in", "/healthz", "/webhooks/other"):
            assert (await outsider.get(path)).status_code == 403
        body = stripe.succeeded(stripe.new_payment(), 1234, scripted.tenant.organization_id)
        paid = await outsider.post("/webhooks/stripe", content=body, headers=stripe.signed(body))
        assert (paid.status_code, paid.text) == (200, "booked")


@_EACH
async def test_customers_reach_the_console_but_cannot_use_the_operator_token(
    kind: str, scripted: ScriptedGateway, place: Place, data_dir: Path, tmp_path: Path
) -> None:
    """Tests the files with the changes for customers that their comments describe."""
    proxy = Proxy(tmp_path, place, for_customers=True)
    async with _console(kind, scripted, proxy, data_dir) as (operator, customer):
        assert (await customer.get("/sign-in")).status_code == 200
        assert (await customer.get("/")).headers["location"] == "/sign-in?next=/"
        for path in ("/sign-in", "//sign-in", "/sign%2Din", "/sign-in?next=/"):
            # The whole address, because the client would read "//sign-in" as the name of a host.
            address = f"https://127.0.0.1:{proxy.console_port}{path}"
            refused = await customer.post(address, data={"token": TOKEN})
            assert refused.status_code == 403, path
            assert "set-cookie" not in refused.headers
        signed_in = await operator.post("/sign-in", data={"token": TOKEN})
        assert signed_in.status_code == 303
        customer.cookies = operator.cookies
        assert (await customer.get("/activity")).status_code == 200
        body = stripe.succeeded(stripe.new_payment(), 1234, scripted.tenant.organization_id)
        paid = await customer.post("/webhooks/stripe", content=body, headers=stripe.signed(body))
        assert paid.status_code == 200


async def _call(client: httpx2.AsyncClient, scripted: ScriptedGateway) -> httpx2.Response:
    return await client.post(
        "/v1/chat/completions",
        json=chat_body(max_tokens=1),
        headers=scripted.tenant.as_customer,
    )


class Callers:
    """Clients of the proxy that never repeat a call, and record each failure."""

    def __init__(self, client: httpx2.AsyncClient, scripted: ScriptedGateway) -> None:
        self._client = client
        self._scripted = scripted
        self._stopping = False
        self.answered = 0
        self.failed: list[str] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._go_on(number) for number in range(_CALLERS)))

    def stop(self) -> None:
        self._stopping = True

    async def _go_on(self, number: int) -> None:
        # Some callers pause, so that connections are idle for a while.
        pause_s = 0 if number % 2 else random.uniform(0, 2)
        while not self._stopping:
            try:
                found = await _call(self._client, self._scripted)
            except httpx2.TransportError as exc:
                self.failed.append(repr(exc))
            else:
                self.answered += found.status_code == 200
                if found.status_code != 200:
                    self.failed.append(f"{found.status_code} {found.text[:200]}")
            await asyncio.sleep(pause_s)


async def _think(peer: Peer) -> None:
    await asyncio.sleep(random.uniform(0, 0.3))
    await chat()(peer)


class Site:
    """Two gateways at the two addresses, which run as in the deployment files."""

    def __init__(self, program: Program, place: Place) -> None:
        self._program = program
        self._place = place
        self._running: dict[str, tuple[Serving, ExitStack]] = {}

    async def start(self, host: str) -> None:
        program = self._program.with_environment(
            TOLLKEEPER_OPERATOR__HOST=host,
            TOLLKEEPER_OPERATOR__PORT=str(self._place.operator),
            TOLLKEEPER_SERVER__STOP_DELAY_S=_STOP_DELAY_S,
        )
        stack = ExitStack()
        line = ("--host", host, "--port", str(self._place.public))
        served = await asyncio.to_thread(stack.enter_context, serving(program, *line))
        self._running[host] = served, stack
        async with httpx2.AsyncClient() as client, asyncio.timeout(_WITHIN_S):
            while (await client.get(f"{served.operator}/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def stop(self, host: str) -> None:
        """Stops a gateway as systemd does. Checks that it reports its stop before it refuses requests."""
        served, stack = self._running.pop(host)
        served.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(1)
        async with httpx2.AsyncClient() as client:
            said = await client.get(f"{served.operator}/readyz")
            assert (said.status_code, said.json()["status"]) == (503, "stopping")
            assert (await client.get(f"{served.public}/v1/nothing")).status_code == 404
        assert await asyncio.to_thread(served.process.wait, _WITHIN_S) == 0
        await asyncio.to_thread(stack.close)

    async def close(self) -> None:
        for _, stack in self._running.values():
            await asyncio.to_thread(stack.close)


@_EACH
@pytest.mark.usefixtures("only_long")
async def test_a_rolling_restart_fails_no_call(
    kind: str, proof: Proof, compiled: dict[str, str], shared_conninfo: str
) -> None:
    conninfo = own_database(shared_conninfo, f"rolling_{kind}")
    place = Place()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(data_folder())
        upstream = await stack.enter_async_context(Upstream(_think))
        installed = await stack.enter_async_context(
            installed_program(
                folder, folder, conninfo, upstream, compiled,
                limits={"requests_per_minute": 1_000_000, "concurrency": 1000},
            )
        )  # fmt: skip
        site = Site(installed.program, place)
        stack.push_async_callback(site.close)
        for host in place.hosts:
            await site.start(host)
        client = await stack.enter_async_context(Proxy(folder, place).running(kind))
        gateway = Gateway(str(client.base_url), installed.services, client)
        tenant = await gateway.make_tenant()
        scripted = ScriptedGateway(gateway, upstream, tenant, probe_tenant=tenant)
        await scripted.grant(10**13)
        callers = Callers(client, scripted)
        calling = asyncio.create_task(callers.run())
        for _ in range(_ROUNDS):
            for host in place.hosts:
                await site.stop(host)
                await site.start(host)
                # As docs/guides/deploy.md says, wait until balancers see that it is ready.
                await asyncio.sleep(_SETTLE_S)
        callers.stop()
        await calling
        assert callers.failed == []
        reached = [call for call in upstream.requests if call.path.endswith("/chat/completions")]
        assert len(reached) == callers.answered > _ROUNDS
        assert (await scripted.balance())["settled"] == COST * callers.answered
    proof.count(
        f"calls through {kind} during {2 * _ROUNDS} restarts, none failed", callers.answered
    )
