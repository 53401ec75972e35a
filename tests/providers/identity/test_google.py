"""Tests the requests that google-auth sends to obtain Google tokens, for each kind of account."""

import asyncio
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import google.oauth2.credentials
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from structlog.testing import capture_logs

from tests.providers.identity.token_servers import (
    SECRET,
    form,
    identified,
    origin,
    service_account,
    token,
)
from tests.support.backend_calls import make, make_call, until
from tests.support.upstream import Peer, Upstream, answer, chat
from tests.support.upstream_gemini import generate
from tests.support.upstream_messages import message
from tollkeeper.core.errors import Unavailable
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.identities import GOOGLE_SCOPE, GoogleIdentity
from tollkeeper.providers.identity.failure import IdentityFailure
from tollkeeper.providers.identity.google import obtain


def _part(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


async def _token(path: Path) -> str:
    obtained = await asyncio.to_thread(obtain, GoogleIdentity(str(path)))
    assert obtained.lifetime_s is not None
    assert obtained.lifetime_s > 3500
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
    told = _part(claims)
    assert told["iss"] == "gateway@p.iam.gserviceaccount.com"
    assert told["scope"] == GOOGLE_SCOPE
    assert abs(told["iat"] - time.time()) < 60
    assert told["exp"] == told["iat"] + 3600
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
        async with identified(GoogleIdentity(str(path)), upstream.url) as backend:
            await make(backend, make_call())
            service_account(path, private_key, tokens.url, private_key_id="key-2")
            await until(lambda: len(tokens.requests) == 2)
    heads = [_part(form(asked)["assertion"].partition(".")[0]) for asked in tokens.requests]
    assert [head["kid"] for head in heads] == ["key-1", "key-2"]


async def test_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "user.json"
    async with Upstream(token("t1")) as tokens:
        document = {
            "type": "authorized_user",
            "client_id": "c",
            "client_secret": SECRET,
            "refresh_token": "r/1",
        }
        # google-auth does not read the address of the token service from a user's file.
        monkeypatch.setattr(google.oauth2.credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", tokens.url)
        path.write_text(json.dumps(document))
        assert await _token(path) == "t1"
    assert form(tokens.requests[0]) == {
        "client_id": "c",
        "client_secret": SECRET,
        "refresh_token": "r/1",
        "grant_type": "refresh_token",
        "scope": GOOGLE_SCOPE,
    }


@pytest.mark.parametrize("impersonates", [False, True])
@pytest.mark.parametrize("is_json", [False, True])
async def test_a_federated_identity(tmp_path: Path, is_json: bool, impersonates: bool) -> None:
    subject = tmp_path / "subject"
    subject.write_text(json.dumps({"id_token": "theirs"}) if is_json else "theirs")
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
            document["service_account_impersonation_url"] = (
                f"{tokens.url}/serviceAccounts/a@b.c:generateAccessToken"
            )
        path = tmp_path / "federated.json"
        path.write_text(json.dumps(document))
        assert await _token(path) == ("t2" if impersonates else "t1")
    sent = form(tokens.requests[0])
    assert (sent["subject_token"], sent["audience"]) == ("theirs", "//iam.googleapis.com/pool")
    if impersonates:
        assert tokens.requests[1].headers["authorization"] == "Bearer t1"
        assert tokens.requests[1].json["scope"] == [GOOGLE_SCOPE]


_MACHINE = """
from tollkeeper.providers.identities import GoogleIdentity
from tollkeeper.providers.identity.google import obtain
print(obtain(GoogleIdentity()).value)
"""


async def test_a_machine() -> None:
    """Runs in a separate process, because google-auth reads its environment variables during the import."""
    async with Upstream(_flavored) as server:
        host = origin(server).removeprefix("http://")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _MACHINE),
            env={**os.environ, "GCE_METADATA_HOST": host, "GCE_METADATA_IP": host},
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
    assert printed == b"t1\n"
    asked = [one for one in server.requests if one.path.partition("?")[0].endswith("/token")]
    assert asked[0].headers["metadata-flavor"] == "Google"


async def _flavored(peer: Peer) -> None:
    """Answers as a metadata server, which identifies itself with a header in each answer."""
    path = peer.request.path
    body: Any = {"email": "a@b", "scopes": []}
    if "/token" in path:
        body = {"access_token": "t1", "expires_in": 3600, "token_type": "Bearer"}
    elif "/project/" in path or "/universe" in path:
        body = "googleapis.com"
    await answer(body, headers=[("metadata-flavor", "Google")])(peer)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\xff",
        b"[]",
        b"{}",
        b'{"type": "service_account"}',
        (
            b'{"type": "service_account", "private_key": "a-very-secret-value", '
            b'"client_email": "a@b", "token_uri": "x"}'
        ),
        b'{"type": "authorized_user", "client_id": 1}',
        b'{"type": "external_account"}',
    ],
)
async def test_a_file_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_bytes(content)
    async with Upstream(chat()) as upstream:
        with capture_logs() as logs:
            async with identified(GoogleIdentity(str(path)), upstream.url) as backend:
                assert isinstance((await make(backend, make_call())).error, Unavailable)
    assert logs[0]["event"] == "credential not renewed"
    assert SECRET not in str(logs)


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    with pytest.raises(IdentityFailure, match=str(path)):
        await _token(path)


async def test_an_external_account_may_ask_an_address(tmp_path: Path) -> None:
    """Uses a source that is not a file. Earlier, the gateway's own code could not read such a source."""
    path = tmp_path / "federated.json"
    async with Upstream(answer({"value": "theirs"}), token("t1")) as server:
        document = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/pool",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{server.url}/exchange",
            "credential_source": {
                "url": f"{server.url}/subject",
                "format": {"type": "json", "subject_token_field_name": "value"},
            },
        }
        path.write_text(json.dumps(document))
        assert await _token(path) == "t1"
    assert form(server.requests[1])["subject_token"] == "theirs"


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
        async with identified(GoogleIdentity(str(path)), url, protocol=protocol) as backend:
            outcome = await make(backend, make_call())
    outcome.check_complete()
    (request,) = upstream.requests
    assert request.path.endswith(end)
    assert request.headers["authorization"] == "Bearer t1"
