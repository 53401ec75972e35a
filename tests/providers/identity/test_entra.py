"""Tests the requests that azure-identity sends to obtain Entra tokens, for applications and for machines."""

import asyncio
import base64
import datetime
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.providers.identity.token_servers import (
    SECRET,
    authority,
    form,
    identified,
    origin,
    pem,
    refused,
    token,
    token_requests,
)
from tests.support.backend_calls import make, make_call
from tests.support.upstream import Received, Upstream, answer, chat
from tollkeeper.providers.identities import ENTRA_SCOPE, EntraIdentity
from tollkeeper.providers.identity.entra import obtain
from tollkeeper.providers.identity.failure import IdentityFailure


async def _asked(identity: EntraIdentity, tokens: Upstream) -> Received:
    obtained = await asyncio.to_thread(obtain, identity)
    assert obtained.value == "t1"
    assert obtained.lifetime_s is not None
    assert 3500 < obtained.lifetime_s <= 3600
    return token_requests(tokens)[-1]


async def test_an_application_with_its_secret(
    tmp_path: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    async with Upstream(authority(token("t1")), tls=tls) as tokens:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", origin(tokens))
        asked = await _asked(EntraIdentity("tenant", "client-1", SECRET), tokens)
        from_file = await _asked(EntraIdentity("tenant", "client-1", secret_file=str(file)), tokens)
    assert asked.path == "/tenant/oauth2/v2.0/token"
    for request in (asked, from_file):
        sent = form(request)
        assert (sent["grant_type"], sent["client_id"]) == ("client_credentials", "client-1")
        assert (sent["scope"], sent["client_secret"]) == (ENTRA_SCOPE, SECRET)


def _certificate(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )


async def test_an_application_with_its_certificate(
    tmp_path: Path,
    private_key: rsa.RSAPrivateKey,
    tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate = _certificate(private_key)
    file = tmp_path / "client.pem"
    file.write_text(pem(private_key) + certificate.public_bytes(Encoding.PEM).decode())
    async with Upstream(authority(token("t1")), tls=tls) as tokens:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", origin(tokens))
        identity = EntraIdentity("tenant", "client-1", certificate_file=str(file))
        sent = form(await _asked(identity, tokens))
    assert sent["client_assertion_type"].endswith(":client-assertion-type:jwt-bearer")
    told = _part(sent["client_assertion"].split(".")[1])
    assert (told["iss"], told["sub"]) == ("client-1", "client-1")


def _part(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


@pytest.mark.parametrize("content", [None, "", "nothing", f"-----BEGIN PRIVATE KEY-----\n{SECRET}"])
async def test_a_certificate_that_is_none(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "client.pem"
    if content is not None:
        file.write_text(content)
    identity = EntraIdentity("t", "c", certificate_file=str(file))
    with pytest.raises((IdentityFailure, OSError)) as failure:
        await asyncio.to_thread(obtain, identity)
    assert SECRET not in str(failure.value)


async def test_a_workload_identity_reads_its_token_anew(
    tmp_path: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "federated"
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "client-1")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(file))
    async with Upstream(authority(token("t1")), tls=tls) as tokens:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", origin(tokens))
        sent = []
        for assertion in ("first", "second"):
            file.write_text(assertion)
            sent.append(form(await _asked(EntraIdentity(), tokens))["client_assertion"])
    assert sent == ["first", "second"]


@pytest.mark.parametrize("client", ["", "id-1"])
async def test_an_app_service(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "access_token": "t1",
        "expires_on": str(int(time.time()) + 3599),
        "token_type": "Bearer",
    }
    async with Upstream(answer(given)) as tokens:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{origin(tokens)}/msi")
        monkeypatch.setenv("IDENTITY_HEADER", SECRET)
        asked = await _asked(EntraIdentity(client=client), tokens)
    assert asked.path.startswith("/msi?")
    assert "resource=https://cognitiveservices.azure.com" in asked.path
    assert ("client_id=id-1" in asked.path) is bool(client)
    assert asked.headers["x-identity-header"] == SECRET


async def test_a_backend_gets_the_token_as_a_bearer(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Upstream(authority(token("t1")), tls=tls) as tokens, Upstream(chat()) as upstream:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", origin(tokens))
        identity = EntraIdentity("tenant", "c", SECRET)
        async with identified(identity, upstream.url) as backend:
            (await make(backend, make_call(streamed=True))).check_complete()
    assert upstream.requests[0].headers["authorization"] == "Bearer t1"
    assert "api-key" not in upstream.requests[0].headers


async def test_a_refusal_shows_its_code_and_nothing_else(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Upstream(authority(refused(401, "invalid_client")), tls=tls) as tokens:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", origin(tokens))
        with pytest.raises(IdentityFailure, match="the token service refused") as failure:
            await asyncio.to_thread(obtain, EntraIdentity("tenant", "c", SECRET))
    assert SECRET not in str(failure.value)
