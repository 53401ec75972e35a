"""Tokens of Google: what each kind of account sends to get one."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.backends.identity.token_servers import (
    SECRET,
    form,
    identified,
    origin,
    service_account,
    token,
)
from tests.support.backend_calls import make, make_call, until
from tests.support.upstream import Upstream, answer, chat
from tests.support.upstream_gemini import generate
from tests.support.upstream_messages import message
from tollkeeper.backends.config import WireProtocol
from tollkeeper.backends.identities import GOOGLE_SCOPE, GoogleFile, GoogleInstance
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.identity.google import google_token


def _part(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


async def _token(path: Path) -> str:
    obtained = await google_token(GoogleFile(path), deadline=1e12, now=lambda: 1_800_000_000.9)
    assert obtained.lifetime_s == 3600
    return obtained.value


async def test_a_service_account_signs_who_it_is(
    tmp_path: Path, private_key: rsa.RSAPrivateKey
) -> None:
    async with Upstream(token("t1")) as tokens:
        path = service_account(tmp_path / "key.json", private_key, tokens.url)
        assert await _token(path) == "t1"
    (asked,) = tokens.requests
    assert asked.path == "/v1"
    sent = form(asked)
    assert sent["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    head, claims, signature = sent["assertion"].split(".")
    assert _part(head) == {"alg": "RS256", "typ": "JWT", "kid": "key-1"}
    assert _part(claims) == {
        "iss": "gateway@p.iam.gserviceaccount.com",
        "scope": GOOGLE_SCOPE,
        "aud": tokens.url,
        "iat": 1_800_000_000,
        "exp": 1_800_003_600,
    }
    private_key.public_key().verify(
        base64.urlsafe_b64decode(signature + "=="),
        f"{head}.{claims}".encode(),
        padding.PKCS1v15(),
        hashes.SHA256(),
    )


async def test_a_changed_file_is_read_for_the_next_token(
    tmp_path: Path, private_key: rsa.RSAPrivateKey
) -> None:
    async with (
        Upstream(token("t1", expires_in=8), token("t2")) as tokens,
        Upstream(chat()) as upstream,
    ):
        path = service_account(tmp_path / "key.json", private_key, tokens.url)
        async with identified(GoogleFile(path), upstream.url) as backend:
            await make(backend, make_call())
            service_account(path, private_key, tokens.url, private_key_id="key-2")
            await until(lambda: len(tokens.requests) == 2)
    heads = [_part(form(asked)["assertion"].partition(".")[0]) for asked in tokens.requests]
    assert [head["kid"] for head in heads] == ["key-1", "key-2"]


async def test_a_user(tmp_path: Path) -> None:
    path = tmp_path / "user.json"
    async with Upstream(token("t1")) as tokens:
        document = {
            "type": "authorized_user",
            "client_id": "c",
            "client_secret": SECRET,
            "refresh_token": "r/1",
            "token_uri": tokens.url,
        }
        path.write_text(json.dumps(document))
        assert await _token(path) == "t1"
    assert form(tokens.requests[0]) == {
        "client_id": "c",
        "client_secret": SECRET,
        "refresh_token": "r/1",
        "grant_type": "refresh_token",
    }


@pytest.mark.parametrize("impersonates", [False, True])
@pytest.mark.parametrize("is_json", [False, True])
async def test_a_federated_identity(tmp_path: Path, is_json: bool, impersonates: bool) -> None:
    subject = tmp_path / "subject"
    subject.write_text(json.dumps({"id_token": "theirs"}) if is_json else "theirs\n")
    source: dict[str, Any] = {"file": str(subject)}
    if is_json:
        source["format"] = {"type": "json", "subject_token_field_name": "id_token"}
    account = answer({"accessToken": "t2", "expireTime": "2100-01-01T00:00:00Z"})
    async with Upstream(token("t1"), account) as tokens:
        document = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/pool",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{tokens.url}/exchange",
            "credential_source": source,
        }
        if impersonates:
            document["service_account_impersonation_url"] = f"{tokens.url}/act"
        path = tmp_path / "federated.json"
        path.write_text(json.dumps(document))
        assert await _token(path) == ("t2" if impersonates else "t1")
    sent = form(tokens.requests[0])
    assert (sent["subject_token"], sent["audience"]) == ("theirs", "//iam.googleapis.com/pool")
    if impersonates:
        assert tokens.requests[1].headers["authorization"] == "Bearer t1"
        assert tokens.requests[1].json["scope"] == [GOOGLE_SCOPE]


async def test_a_machine() -> None:
    async with Upstream(token("t1")) as metadata:
        identity = GoogleInstance(origin(metadata).removeprefix("http://"))
        obtained = await google_token(identity, deadline=1e12, now=lambda: 0.0)
    assert obtained.value == "t1"
    (asked,) = metadata.requests
    assert asked.path == "/computeMetadata/v1/instance/service-accounts/default/token"
    assert asked.headers["metadata-flavor"] == "Google"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"\xff", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"{}", "none of the types"),
        (b'{"type": "service_account"}', "has no private_key"),
        (
            b'{"type": "service_account", "private_key": "x", "client_email": "a@b"}',
            "no private key",
        ),
        (b'{"type": "authorized_user", "client_id": 1}', "has no client_id"),
        (b'{"type": "external_account"}', "has no audience"),
        (b"x" * 300_000, "too large"),
    ],
)
async def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(IdentityFailure, match=reason):
        await _token(path)


async def test_a_source_that_is_no_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "federated.json"
    document = {
        "type": "external_account",
        "audience": "a",
        "subject_token_type": "t",
        "token_url": "https://sts.example",
        "credential_source": {"url": "http://169.254.169.254"},
    }
    path.write_text(json.dumps(document))
    with pytest.raises(IdentityFailure, match="names no file"):
        await _token(path)


@pytest.mark.parametrize(
    ("protocol", "verb", "end"),
    [
        (WireProtocol.VERTEX_MESSAGES, message(), "anthropic/models/upstream-model:rawPredict"),
        (WireProtocol.VERTEX_GEMINI, generate(), "google/models/upstream-model:generateContent"),
    ],
)
async def test_vertex_with_a_service_account(
    tmp_path: Path, private_key: rsa.RSAPrivateKey, protocol: WireProtocol, verb: Any, end: str
) -> None:
    async with Upstream(token("t1")) as tokens, Upstream(verb) as upstream:
        path = service_account(tmp_path / "key.json", private_key, tokens.url)
        url = (
            f"{upstream.url}/projects/p/locations/global/publishers/{end.partition('/')[0]}/models"
        )
        async with identified(GoogleFile(path), url, protocol=protocol) as backend:
            outcome = await make(backend, make_call())
    outcome.check_complete()
    (request,) = upstream.requests
    assert request.path.endswith(end)
    assert request.headers["authorization"] == "Bearer t1"
