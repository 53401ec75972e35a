"""Tests a backend with an identity instead of a key: the client's errors and charges while the token
service refuses a token, and after it has issued one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.providers.identity.token_servers import authority
from tests.support.certificates import make_certificate
from tests.support.constants import backend_constants
from tests.support.gateway import assert_error
from tests.support.scripted_gateway import COST, ScriptedGateway, scripted_gateway
from tests.support.upstream import Upstream, answer, chat

_SECRET = "secret-of-the-client"
_PATIENCE_S = 20


@dataclass(frozen=True)
class Identified:
    scripted: ScriptedGateway
    tokens: Upstream


@pytest.fixture
async def identified(
    data_dir: Path, conninfo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Identified]:
    """Starts a gateway with an identity whose token service refuses at first."""
    secret = tmp_path / "secret"
    secret.write_text(_SECRET)
    refused = answer({"error": "invalid_client", "error_description": _SECRET}, status=401)
    tls, certificate = make_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    async with Upstream(authority(refused), tls=tls) as tokens, Upstream(chat()) as upstream:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", tokens.url.removesuffix("/v1"))
        identity = {"tenant": "tenant", "client": "c", "secret": f"file:{secret}"}
        backend = {"credential": "entra", "identity": identity}
        async with scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            backend=backend,
            changed_constants=backend_constants(failures_to_eject=1),
        ) as scripted:
            yield Identified(scripted, tokens)


async def test_calls_wait_for_a_token_and_nobody_pays_for_its_absence(
    identified: Identified, capfd: pytest.CaptureFixture[str]
) -> None:
    scripted, tokens = identified.scripted, identified.tokens
    for streamed in (False, True):
        found = await scripted.chat(stream=streamed)
        assert_error(found, 503, "service_unavailable")
        assert int(found.headers["retry-after"]) >= 1
        assert "credential" in found.json()["error"]["message"]
        assert _SECRET not in found.text
        assert (await scripted.entry_of(found)).status == "released"
    assert scripted.upstream.requests == []
    health = scripted.gateway.services.backends["scripted"].health()
    assert set(health.replicas.values()) == {"healthy"}

    tokens.play(authority(answer({"access_token": "token-1", "expires_in": 3600})))
    async with asyncio.timeout(_PATIENCE_S):
        while (found := await scripted.chat()).status_code != 200:
            assert found.status_code == 503
            await asyncio.sleep(0.1)
    assert scripted.upstream.requests[-1].headers["authorization"] == "Bearer token-1"
    assert (await scripted.entry_of(found)).cost == COST
    balance = await scripted.balance()
    assert (balance["settled"], balance["held"], balance["unsettled"]) == (COST, 0, 0)
    logged = capfd.readouterr()
    assert _SECRET not in logged.out + logged.err
    assert "token-1" not in logged.out + logged.err
