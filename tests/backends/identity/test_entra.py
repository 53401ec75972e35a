"""Tokens of Entra: what an application and a machine send to get one."""

import base64
import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.backends.identity.token_servers import (
    SECRET,
    form,
    identified,
    origin,
    pem,
    token,
)
from tests.support.backend_calls import make, make_call
from tests.support.upstream import Received, Upstream, chat
from tollkeeper.backends.identities import (
    ENTRA_SCOPE,
    EntraApp,
    EntraCertificate,
    EntraFederated,
    EntraIdentity,
    EntraManaged,
    EntraSecret,
)
from tollkeeper.backends.identity.entra import entra_token
from tollkeeper.backends.identity.failure import IdentityFailure

_NOW = 1_800_000_000


async def _asked(identity: EntraIdentity, tokens: Upstream) -> Received:
    obtained = await entra_token(identity, deadline=1e12, now=lambda: float(_NOW))
    assert (obtained.value, obtained.lifetime_s) == ("t1", 3600)
    return tokens.requests[-1]


async def test_an_application_with_its_secret(tmp_path: Path) -> None:
    async with Upstream(token("t1")) as tokens:
        app = EntraApp("my tenant", "client-1", origin(tokens))
        asked = await _asked(EntraSecret(app, SECRET), tokens)
        file = tmp_path / "secret"
        file.write_text(f"{SECRET}\n")
        from_file = await _asked(EntraSecret(app, file=file), tokens)
    assert asked.path == "/my%20tenant/oauth2/v2.0/token"
    assert form(asked) == {
        "grant_type": "client_credentials",
        "client_id": "client-1",
        "scope": ENTRA_SCOPE,
        "client_secret": SECRET,
    }
    assert form(from_file) == form(asked)


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
    tmp_path: Path, private_key: rsa.RSAPrivateKey
) -> None:
    certificate = _certificate(private_key)
    file = tmp_path / "client.pem"
    file.write_text(pem(private_key) + certificate.public_bytes(Encoding.PEM).decode())
    async with Upstream(token("t1")) as tokens:
        app = EntraApp("tenant", "client-1", origin(tokens))
        sent = form(await _asked(EntraCertificate(app, file), tokens))
        url = f"{origin(tokens)}/tenant/oauth2/v2.0/token"
    assert sent["client_assertion_type"].endswith(":client-assertion-type:jwt-bearer")
    head, claims, signature = sent["client_assertion"].split(".")
    fingerprint = hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
    named = base64.urlsafe_b64encode(fingerprint).decode().rstrip("=")
    assert _part(head) == {"alg": "PS256", "typ": "JWT", "x5t#S256": named}
    told = _part(claims)
    assert (told["aud"], told["iss"], told["sub"]) == (url, "client-1", "client-1")
    assert (told["nbf"], told["exp"]) == (_NOW, _NOW + 600)
    pss = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)
    private_key.public_key().verify(
        base64.urlsafe_b64decode(signature + "=="),
        f"{head}.{claims}".encode(),
        pss,
        hashes.SHA256(),
    )


def _part(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


@pytest.mark.parametrize("content", ["", "nothing", "-----BEGIN PRIVATE KEY-----\n"])
async def test_a_certificate_that_is_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "client.pem"
    file.write_text(content)
    identity = EntraCertificate(EntraApp("t", "c", "https://login.example"), file)
    with pytest.raises(IdentityFailure, match="no private key"):
        await entra_token(identity, deadline=1e12, now=lambda: 0.0)


async def test_a_certificate_without_its_certificate(
    tmp_path: Path, private_key: rsa.RSAPrivateKey
) -> None:
    file = tmp_path / "client.pem"
    file.write_text(pem(private_key))
    identity = EntraCertificate(EntraApp("t", "c", "https://login.example"), file)
    with pytest.raises(IdentityFailure, match="no certificate"):
        await entra_token(identity, deadline=1e12, now=lambda: 0.0)


async def test_a_workload_identity_reads_its_token_anew(tmp_path: Path) -> None:
    file = tmp_path / "federated"
    async with Upstream(token("t1")) as tokens:
        identity = EntraFederated(EntraApp("tenant", "client-1", origin(tokens)), file)
        sent = []
        for assertion in ("first", "second"):
            file.write_text(assertion)
            sent.append(form(await _asked(identity, tokens))["client_assertion"])
    assert sent == ["first", "second"]


@pytest.mark.parametrize(("client", "end"), [("", ""), ("id 1", "&client_id=id%201")])
async def test_a_machine(client: str, end: str) -> None:
    async with Upstream(token("t1", expires_in="3600")) as tokens:
        asked = await _asked(EntraManaged(client, f"{origin(tokens)}/token"), tokens)
    resource = "https%3A%2F%2Fcognitiveservices.azure.com"
    assert asked.path == f"/token?api-version=2018-02-01&resource={resource}{end}"
    assert asked.headers["metadata"] == "true"


async def test_an_app_service() -> None:
    async with Upstream(token("t1")) as tokens:
        asked = await _asked(EntraManaged("", f"{origin(tokens)}/msi", SECRET), tokens)
    assert asked.path.startswith("/msi?api-version=2019-08-01&resource=")
    assert asked.headers["x-identity-header"] == SECRET
    assert "metadata" not in asked.headers


async def test_a_backend_gets_the_token_as_a_bearer() -> None:
    async with Upstream(token("t1")) as tokens, Upstream(chat()) as upstream:
        identity = EntraSecret(EntraApp("t", "c", origin(tokens)), SECRET)
        async with identified(identity, upstream.url) as backend:
            (await make(backend, make_call(streamed=True))).check_complete()
    assert upstream.requests[0].headers["authorization"] == "Bearer t1"
    assert "api-key" not in upstream.requests[0].headers
