"""Tests that strangers who open connections and send little keep nobody out of the console."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.support import stripe_events as stripe
from tests.support.certificates import make_certificate
from tests.support.console_site import TOKEN, ConsoleSite, serving_console
from tests.support.constants import constants
from tests.support.databases import data_dir_beside, database_url
from tests.support.http_client import http_client
from tests.support.program import Program, running_console, write_config
from tests.support.scripted_gateway import eventually
from tests.support.tables import each

_BEGINNINGS = (b"", b"GET /sign-in HT", b"GET /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n")
_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n"
)


@pytest.fixture
async def quick(site: ConsoleSite) -> AsyncIterator[str]:
    """Serves a console with short deadlines and few connections."""
    deadlines = {"_HEAD_S": 1, "_IDLE_S": 2, "_WRITE_S": 1}
    with constants({f"console.server.{name}": value for name, value in deadlines.items()}):
        async with serving_console(site.settings, site.services, connections_max=24) as address:
            yield address


class _Wires:
    """Opens raw connections to the console, and closes them at the end of the test."""

    def __init__(self, address: str) -> None:
        url = httpx2.URL(address)
        self._address = (url.host, url.port)
        self.opened: list[socket.socket] = []

    async def open(self, data: bytes = b"", source: str = "127.0.0.1") -> "socket.socket":
        wire = socket.socket()
        self.opened.append(wire)
        wire.bind((source, 0))
        wire.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(wire, self._address)
        await loop.sock_sendall(wire, data)
        return wire

    def close(self) -> None:
        for wire in self.opened:
            wire.close()


async def _read(wire: socket.socket, within_s: float = 20) -> bytes:
    """Returns the next bytes; none if the console has closed the connection."""
    async with asyncio.timeout(within_s):
        try:
            return await asyncio.get_running_loop().sock_recv(wire, 65_536)
        except ConnectionError:
            return b""


async def _send(wire: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(wire, data)


async def _is_closed(wire: socket.socket, within_s: float = 20) -> bool:
    try:
        async with asyncio.timeout(within_s):
            while await _read(wire, within_s):
                pass
    except TimeoutError:
        return False
    return True


@pytest.fixture
def wires(quick: str) -> Iterator[_Wires]:
    made = _Wires(quick)
    yield made
    made.close()


@each("beginning", _BEGINNINGS)
async def test_a_head_has_to_arrive_soon(wires: _Wires, beginning: bytes) -> None:
    began = time.monotonic()
    assert await _is_closed(await wires.open(beginning))
    assert time.monotonic() - began > 0.9


async def test_a_dripping_head_has_the_same_deadline(wires: _Wires) -> None:
    for before in (b"", _HEALTH):
        wire = await wires.open(before)
        closed = asyncio.create_task(_is_closed(wire))
        for _ in range(100):
            await _send(wire, b"G")
            await asyncio.sleep(0.1)
            if closed.done():
                break
        assert await closed


async def test_slow_but_honest_clients_are_served(wires: _Wires) -> None:
    wire = await wires.open(_HEALTH[:-10])
    await asyncio.sleep(0.3)
    for rest in (_HEALTH[-10:], _HEALTH):
        # The second request comes on the same connection after a pause.
        await _send(wire, rest)
        assert (await _read(wire)).startswith(b"HTTP/1.1 200 OK")
        await asyncio.sleep(1.2)
    form = f"token={TOKEN}".encode()
    wire = await wires.open(_FORM + b"Content-Length: %d\r\n\r\n" % len(form))
    for letter in form:
        # Together longer than the deadline of a head, which doesn't count for a body.
        await asyncio.sleep(0.1)
        await _send(wire, bytes([letter]))
    assert (await _read(wire)).startswith(b"HTTP/1.1 303")


async def test_a_client_that_does_not_read_is_disconnected(wires: _Wires, quick: str) -> None:
    wire = await wires.open(b"GET /static/plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    received, waited = 0, False
    while data := await _read(wire):
        received += len(data)
        if not waited:
            # Longer than the deadline for reading an answer.
            await asyncio.sleep(4)
            waited = True
    async with http_client(quick, headers={"Accept-Encoding": "identity"}) as client:
        whole = await client.get("/static/plotly.js")
    # What the buffers of both ends held could still be read, but not the whole file.
    assert received < len(whole.content) == int(whole.headers["content-length"])


async def test_silent_connections_make_room(wires: _Wires, quick: str) -> None:
    """The oldest idle connection makes room; one network has an eighth of the connections."""
    with constants({"console.server._HEAD_S": 60}):
        for number in range(60):
            await wires.open(_BEGINNINGS[number % 3], f"127.0.0.{2 + number % 9}")
        async with http_client(quick) as client:
            assert (await client.get("/healthz")).text == "ok"
            assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303
            assert (await client.get("/models")).status_code == 200
        closed = await asyncio.gather(*(_is_closed(wire, 1) for wire in wires.opened))
        assert 16 <= closed.count(False) <= 24


async def test_the_connections_of_a_proxy_count_for_no_network(site: ConsoleSite) -> None:
    """All browsers behind a proxy have its address."""
    console = site.settings.console.model_copy(update={"trusted_proxies": ("127.0.0.1",)})
    settings = site.settings.model_copy(update={"console": console})
    async with serving_console(settings, site.services, connections_max=24) as address:
        wires = _Wires(address)
        try:
            for _ in range(20):
                await wires.open(_HEALTH)
            for wire in wires.opened:
                assert (await _read(wire)).startswith(b"HTTP/1.1 200")
            for wire in wires.opened:
                await _send(wire, _HEALTH)
                assert (await _read(wire)).startswith(b"HTTP/1.1 200")
        finally:
            wires.close()


async def test_a_handshake_has_to_end_soon(site: ConsoleSite, tmp_path: Path) -> None:
    _, certificate = make_certificate(tmp_path)
    files = (str(certificate), str(certificate.with_suffix(".key")))
    console = site.settings.console.model_copy(update={"tls_files": files})
    settings = site.settings.model_copy(update={"console": console})
    with constants({"console.server._HEAD_S": 1}):
        async with serving_console(settings, site.services) as address:
            wires = _Wires(address)
            try:
                for data in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", _HEALTH):
                    assert await _is_closed(await wires.open(data))
            finally:
                wires.close()
            verify = ssl.create_default_context(cafile=str(certificate))
            async with httpx2.AsyncClient(base_url=address, verify=verify) as client:
                assert (await client.get("/healthz")).text == "ok"


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_bodies_without_a_session_are_not_kept(wires: _Wires, chunked: bool) -> None:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 4000000"
    piece = b"a" * 65_536
    framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
    before = psutil.Process().memory_info().rss
    for number in range(20):
        wire = await wires.open(_FORM + framing + b"\r\n\r\n", f"127.0.0.{2 + number}")
        for _ in range(8):
            await _send(wire, framed)
    for wire in wires.opened:
        assert (await _read(wire)).startswith(b"HTTP/1.1 413")
    assert psutil.Process().memory_info().rss - before < 40 << 20


@pytest.mark.parametrize("tls", [False, True])
async def test_a_process_with_few_files_still_answers(
    site: ConsoleSite, conninfo: str, tmp_path: Path, tls: bool
) -> None:
    """Two hundred silent connections to a console that may open 150 files."""
    secret = tmp_path / "secret"
    secret.write_text(stripe.SECRET)
    _, certificate = make_certificate(tmp_path)
    more = f"[payments]\nwebhook_secrets = {{ live = [{json.dumps(f'file:{secret}')}] }}\n"
    folder = data_dir_beside(site.settings.database.data_dir, conninfo)
    url = database_url(conninfo)
    config = write_config(tmp_path, folder, url=url, more=more)
    program = Program(config, tmp_path, wrapper=("sh", "-c", 'ulimit -n 150; exec "$@"', "sh"))
    if tls:
        files = [str(certificate), str(certificate.with_suffix(".key"))]
        program = program.with_environment(TOLLKEEPER_CONSOLE__TLS_FILES=json.dumps(files))
    with running_console(program) as (process, printed), ExitStack() as stack:
        wires = _Wires(printed["console"])
        stack.callback(wires.close)
        for number in range(200):
            data = b"\x16\x03\x01"[: number % 4] if tls else _BEGINNINGS[number % 3]
            await wires.open(data, f"127.0.0.{2 + number % 20}")
        await eventually(lambda: process.num_fds() < 120)
        verify = ssl.create_default_context(cafile=str(certificate))
        async with httpx2.AsyncClient(
            base_url=printed["console"], verify=verify, timeout=20
        ) as client:
            body = stripe.succeeded(stripe.new_payment(), 5)
            answer = await client.post(
                "/webhooks/stripe", content=body, headers=stripe.signed(body)
            )
            assert answer.text.startswith("unassigned")
            assert (await client.get("/healthz")).text == "ok"
            signed_in = await client.post("/sign-in", data={"token": printed["operator_token"]})
            assert signed_in.status_code == 303
            assert (await client.get("/models")).status_code == 200
