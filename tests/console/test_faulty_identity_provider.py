"""Tests an identity provider that hangs, sends too much or sends invalid data. The error page contains a
request id, which is also in the log."""

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.support.changed_services import changed
from tests.support.console_site import TOKEN, ConsoleSite
from tests.support.constants import constants
from tests.support.identity_provider import console_with_provider
from tests.support.scripted_gateway import eventually
from tests.support.tables import each
from tests.support.upstream import Peer, Upstream, Verb, answer, endless, gzip_bomb, hang
from tollkeeper.console.identity_provider import _REDEEMING_MAX
from tollkeeper.console.sessions import COOKIE
from tollkeeper.core.runtime.clock import unix_now

_PATHS = {
    "discovery": "/.well-known/openid-configuration",
    "token": "/token",
    "keys": "/keys",
}
_FAULTS: dict[str, Verb] = {
    "hangs": hang(),
    "sends too much": answer(b'{"padding": "' + b"x" * (2 << 20) + b'"}'),
    "sends for ever": endless(b" " * 65_536),
    "sends too much, compressed": gzip_bomb(64 << 20),
    "sends broken JSON": answer(b'{"issuer": '),
    "sends deep JSON": answer(b"[" * 200_000),
    "sends a list": answer(b"[1]"),
    "sends a text": answer(b'"issuer"'),
    "sends no text": answer(b"\xff\xfe\x00"),
    "fails": answer({"error": "server_error"}, status=500),
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSOLE_CLIENT_SECRET", "known to both")


class FaultyProvider(Upstream):
    """Answers properly, except for one of its documents."""

    def __init__(self, document: str, fault: Verb) -> None:
        super().__init__(self._document)
        self._faults = {_PATHS[document]: fault}

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _document(self, peer: Peer) -> None:
        path = peer.request.path
        proper: dict[str, Any] = {
            _PATHS["discovery"]: {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            },
            _PATHS["token"]: {"access_token": "a", "token_type": "Bearer", "id_token": "a.b.c"},
            _PATHS["keys"]: {"keys": []},
        }
        fault = self._faults.get(path)
        await (answer(json.dumps(proper[path]).encode()) if fault is None else fault)(peer)


async def _last_page(client: httpx2.AsyncClient) -> httpx2.Response:
    """Signs in until the fault occurs, and returns the last page."""
    began = await client.get("/sign-in/provider")
    if began.status_code != 303:
        return began
    state = parse_qs(urlsplit(began.headers["location"]).query)["state"][0]
    return await client.get("/sign-in/callback", params={"state": state, "code": "x"})


@pytest.mark.slow
@each(
    ("document", "fault"),
    [(document, fault) for document in _PATHS for fault in _FAULTS],
)
async def test_the_person_is_told_and_nobody_is_signed_in(
    site: ConsoleSite, document: str, fault: str
) -> None:
    # The size limit must end an endless answer, so the deadline is long.
    deadline_s = 0.5 if fault == "hangs" else 60
    with constants({"console.identity_provider._DEADLINE_S": deadline_s}):
        async with (
            FaultyProvider(document, _FAULTS[fault]) as provider,
            console_with_provider(site, provider.issuer) as address,
            httpx2.AsyncClient(timeout=60, base_url=address) as client,
        ):
            with capture_logs(processors=[merge_contextvars]) as logs:
                page = await _last_page(client)
            assert page.status_code in (403, 503), page.text
            assert COOKIE not in client.cookies
            request_id = page.headers["x-request-id"]
            assert "The identity provider" in page.text
            assert re.search(rf"Request id:? <code[^>]*>{request_id}</code>", page.text)
            assert request_id in [entry.get("request_id") for entry in logs]
            # The operator token still works.
            assert (await client.post("/sign-in", data={"token": TOKEN})).status_code == 303


def _from(source: str, address: str) -> httpx2.AsyncClient:
    """Returns a client whose connections come from this address of the machine."""
    transport = httpx2.AsyncHTTPTransport(local_address=source)
    return httpx2.AsyncClient(timeout=60, base_url=address, transport=transport)


async def _redeem(client: httpx2.AsyncClient, code: str) -> httpx2.Response:
    """Begins a sign-in, and comes back with this code."""
    began = await client.get("/sign-in/provider")
    state = parse_qs(urlsplit(began.headers["location"]).query)["state"][0]
    return await client.get("/sign-in/callback", params={"state": state, "code": code})


async def _refuse_or_hang(peer: Peer) -> None:
    """Refuses every code at once, except for the strangers' codes."""
    if b"code=junk" in peer.request.body:
        await hang()(peer)
    await answer({"error": "invalid_grant"}, status=400)(peer)


async def test_strangers_codes_keep_nobody_from_signing_in(site: ConsoleSite) -> None:
    """A real sign-in, here with a code that the provider refuses, gets the provider's answer."""
    with constants({"console.identity_provider._DEADLINE_S": 60}):
        async with (
            FaultyProvider("token", _refuse_or_hang) as provider,
            console_with_provider(site, provider.issuer) as address,
            AsyncExitStack() as stack,
        ):
            junk = []
            for number in range(40):
                stranger = _from(f"127.0.0.{2 + number % 3}", address)
                await stack.enter_async_context(stranger)
                junk.append(asyncio.create_task(_redeem(stranger, "junk")))
            await eventually(lambda: sum(task.done() for task in junk) == 40 - _REDEEMING_MAX)
            assert {task.result().status_code for task in junk if task.done()} == {503}
            client = await stack.enter_async_context(_from("127.0.0.1", address))
            for _ in range(3):
                page = await _redeem(client, "real")
                assert page.status_code == 403
                assert "not valid for this console" in page.text
            for task in junk:
                task.cancel()
            await asyncio.gather(*junk, return_exceptions=True)


async def test_a_network_may_send_few_wrong_codes(site: ConsoleSite) -> None:
    late = 0
    services = changed(site.services, clock=lambda: unix_now() + late)
    refused = answer({"error": "invalid_grant"}, status=400)
    async with (
        FaultyProvider("token", refused) as provider,
        console_with_provider(site, provider.issuer, services=services) as address,
        _from("127.0.0.2", address) as stranger,
        _from("127.0.0.1", address) as client,
    ):
        statuses = [(await _redeem(stranger, "junk")).status_code for _ in range(10)]
        sent = len(provider.requests)
        waiting = await _redeem(stranger, "junk")
        assert (statuses, waiting.status_code) == ([403] * 10, 429)
        assert 0 < int(waiting.headers["retry-after"]) <= 300
        assert len(provider.requests) == sent
        assert (await _redeem(client, "real")).status_code == 403
        late = 301
        assert (await _redeem(stranger, "junk")).status_code == 403


async def test_the_way_to_the_provider_costs_little(site: ConsoleSite) -> None:
    """Anybody may ask for it. It cost 50 ms while each request read all authorities' certificates."""
    async with (
        FaultyProvider("token", hang()) as provider,
        console_with_provider(site, provider.issuer) as address,
        httpx2.AsyncClient(timeout=60, base_url=address) as client,
    ):
        assert (await client.get("/sign-in/provider")).status_code == 303
        before = time.thread_time()
        for _ in range(40):
            assert (await client.get("/sign-in/provider")).status_code == 303
        assert time.thread_time() - before < 40 * 0.02
        assert [seen.path for seen in provider.requests] == [_PATHS["discovery"]]


async def test_every_problem_has_a_request_id_that_the_log_has(site: ConsoleSite) -> None:
    async with httpx2.AsyncClient(timeout=60, base_url=site.address) as client:
        wrong = await client.post("/sign-in", data={"token": "wrong"})
        assert wrong.headers["x-request-id"] in wrong.text
        await client.post("/sign-in", data={"token": TOKEN})
        with capture_logs(processors=[merge_contextvars]) as logs:
            missing = await client.get("/activity/6f3bae30-0000-7000-8000-000000000000")
        request_id = missing.headers["x-request-id"]
        assert missing.status_code == 404
        assert request_id in missing.text
        assert request_id in [entry.get("request_id") for entry in logs]
        assert (await client.get("/models")).headers["x-request-id"] != request_id
