"""Tests that botocore obtains AWS keys from all supported sources, and that requests are signed with them."""

import asyncio
import hashlib
import hmac
import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.providers.identity.token_servers import QUICK, SECRET, form, identified, opened, origin
from tests.support.backend_calls import make, make_call, until
from tests.support.upstream import Peer, Received, Upstream, Verb, answer, chat, refuse
from tollkeeper.core.errors import BackendFailed, Unavailable
from tollkeeper.providers.credentials import OutgoingRequest
from tollkeeper.providers.identities import AwsIdentity, region_in
from tollkeeper.providers.identity import aws
from tollkeeper.providers.identity.aws import obtain
from tollkeeper.providers.identity.failure import IdentityFailure
from tollkeeper.providers.identity.renewal import Expiring
from tollkeeper.providers.identity.sigv4 import SigningKeys

_IDENTITY = AwsIdentity("eu-west-1")
_NOW = datetime(2030, 1, 1, tzinfo=UTC).timestamp()


async def _obtained(identity: AwsIdentity = _IDENTITY) -> Expiring[SigningKeys]:
    return await asyncio.to_thread(obtain, identity)


def _end(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _given(**changes: Any) -> dict[str, Any]:
    return {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": "ASIA1",
        "SecretAccessKey": SECRET,
        "Token": "session-1",
        "Expiration": _end(21600),
        **changes,
    }


_KEYS = SigningKeys("ASIA1", SECRET, "session-1")
_ROLES = "/latest/meta-data/iam/security-credentials/"


async def test_a_machine_asks_for_a_session_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def metadata(peer: Peer) -> None:
        texts = {"/latest/api/token": b"imds-token", _ROLES: b"gateway-role"}
        body = texts.get(peer.request.path) or json.dumps(_given()).encode()
        await answer(body, content_type="text/plain")(peer)

    async with Upstream(metadata) as service:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{origin(service)}/")
        found = await _obtained()
    assert found.value == _KEYS
    assert found.lifetime_s is not None
    assert 21000 < found.lifetime_s <= 21600
    session, _, role = service.requests
    assert session.head.startswith(b"PUT /latest/api/token ")
    assert role.path == f"{_ROLES}gateway-role"
    assert role.headers["x-aws-ec2-metadata-token"] == "imds-token"


async def test_a_container_reads_its_token_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    async with Upstream(answer(_given())) as service:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/creds")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(file))
        for content in ("first", "second"):
            file.write_text(content)
            assert (await _obtained()).value == _KEYS
    sent = [request.headers["authorization"] for request in service.requests]
    assert sent == ["first", "second"]


_STS = """<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>
<Credentials><AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>session-1</SessionToken><Expiration>{end}</Expiration></Credentials>
</{action}Result></{action}Response>"""


def _role_given(action: str) -> Verb:
    body = _STS.format(action=action, secret=SECRET, end=_end(3600))
    return answer(body.encode(), content_type="text/xml")


async def test_a_role_is_taken_with_a_federated_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("theirs")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/gateway")
    async with Upstream(_role_given("AssumeRoleWithWebIdentity")) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        found = await _obtained()
    assert found.value == _KEYS
    assert found.lifetime_s is not None
    assert 3500 < found.lifetime_s <= 3600
    (asked,) = sts.requests
    sent = form(asked)
    assert (sent["Action"], sent["RoleArn"]) == (
        "AssumeRoleWithWebIdentity",
        "arn:aws:iam::1:role/gateway",
    )
    assert sent["WebIdentityToken"] == "theirs"


async def test_a_profile_may_name_a_role_and_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, the gateway read profiles with its own code, which rejected both."""
    program = tmp_path / "keys"
    program.write_text(
        f"#!/bin/sh\necho '{json.dumps({'Version': 1, 'SessionToken': 'session-1', **_given()})}'\n"
    )
    program.chmod(0o700)
    config = tmp_path / "config"
    config.write_text(
        f"[profile run]\ncredential_process = {program}\n"
        "[profile role]\nsource_profile = run\nrole_arn = arn:aws:iam::1:role/gateway\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with Upstream(_role_given("AssumeRole")) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        for profile in ("run", "role"):
            assert (await _obtained(AwsIdentity("eu-west-1", profile))).value == _KEYS
    (asked,) = sts.requests
    assert form(asked)["RoleArn"] == "arn:aws:iam::1:role/gateway"


@pytest.mark.parametrize(
    "given",
    [
        {},
        _given(AccessKeyId=None),
        _given(AccessKeyId="two words"),
        _given(SecretAccessKey=""),
        _given(Token="a\r\nb: c"),
        _given(Expiration=None),
    ],
)
async def test_an_answer_without_keys(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs:
        async with Upstream(answer(given)) as service, Upstream(chat()) as upstream:
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", service.url)
            async with identified(AwsIdentity("r"), upstream.url) as backend:
                assert isinstance((await make(backend, make_call())).error, Unavailable)
    assert logs[0]["event"] == "credential not renewed"
    assert SECRET not in str(logs)


_PROFILES = """
[default]
aws_access_key_id = AKIA0
aws_secret_access_key = secret-0

[gateway]
aws_access_key_id = AKIA1
aws_secret_access_key = secret-1
aws_session_token = session-1
"""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "profile"),
        ("nonsense", "Unable to parse config file"),
        ("[other]\n", "gateway"),
        ("[gateway]\n", "found no keys"),
    ],
)
async def test_a_file_without_the_profile(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "credentials"
    if content is not None:
        file.write_text(content)
    identity = AwsIdentity("r", "gateway", str(file))
    with pytest.raises(IdentityFailure, match=reason):
        await _obtained(identity)
    async with Upstream(chat()) as upstream, identified(identity, upstream.url) as backend:
        assert isinstance((await make(backend, make_call())).error, Unavailable)
    assert upstream.requests == []


def _credential_of(request: Received) -> str:
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


async def test_a_changed_file_changes_the_keys_of_later_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "_RECHECK_S", 0.05)
    file = tmp_path / "credentials"
    file.write_text(_PROFILES)
    used: list[str] = []
    with capture_logs() as logs:
        async with (
            Upstream(chat()) as upstream,
            identified(AwsIdentity("r", "gateway", str(file)), upstream.url) as backend,
        ):

            async def uses(key: str) -> None:
                async with asyncio.timeout(20):
                    while used[-1:] != [key]:
                        await make(backend, make_call())
                        used.append(_credential_of(upstream.requests[-1]))

            await uses("AKIA1")
            file.write_text(_PROFILES.replace("AKIA1", "AKIA-2"))
            await uses("AKIA-2")
            # If the file is empty during a rotation, the last keys stay in use.
            file.write_text("")
            await until(lambda: any(entry["event"] == "credential not renewed" for entry in logs))
            await make(backend, make_call())
            assert _credential_of(upstream.requests[-1]) == "AKIA-2"
    assert upstream.requests[0].headers["x-amz-security-token"] == "session-1"
    assert "secret-1" not in str(logs)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def _expected_signature(request: Received, secret: str, region: str) -> str:
    """Computes the signature as AWS documents it, without using the tested code."""
    time = request.headers["x-amz-date"]
    names = ["host", "x-amz-date"]
    if "x-amz-security-token" in request.headers:
        names.append("x-amz-security-token")
    lines = ["POST", request.path.replace("%", "%25"), ""]
    lines += [f"{name}:{request.headers[name]}" for name in names]
    lines += ["", ";".join(names), hashlib.sha256(request.body).hexdigest()]
    scope = f"{time[:8]}/{region}/bedrock/aws4_request"
    hashed = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashed])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


@pytest.mark.parametrize("session", ["", "session-1"])
@pytest.mark.usefixtures("keys")
async def test_every_request_is_signed(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if session:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session)
    identity = AwsIdentity("eu-west-1")
    async with (
        Upstream(chat()) as upstream,
        identified(identity, upstream.url, now=lambda: _NOW) as backend,
    ):
        for streamed in (False, True):
            (await make(backend, make_call(streamed=streamed))).check_complete()
    for request in upstream.requests:
        assert request.headers["x-amz-date"] == "20300101T000000Z"
        signature = request.headers["authorization"].rpartition("Signature=")[2]
        assert signature == _expected_signature(request, SECRET, "eu-west-1")
        assert SECRET not in request.head.decode()


@pytest.mark.usefixtures("keys")
async def test_a_large_body_is_signed_while_other_calls_go_on() -> None:
    credential, others = opened(_IDENTITY), 0

    async def serve_others() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve_others())
    for size, waits in ((0, True), (1000, False), (32 << 20, True)):
        # The first request also waits for the keys.
        request, before = OutgoingRequest("127.0.0.1:80", "/", b"x" * size), others
        headers = await credential.headers_for(request, deadline=1e12)
        assert b"Signature=" in headers
        assert (others > before) is waits, size
    serving.cancel()
    await credential.close()


@pytest.mark.usefixtures("keys")
async def test_the_region_is_that_of_the_replica() -> None:
    credential = opened(AwsIdentity("eu-west-1"))
    scopes = []
    for host in ("bedrock-runtime.us-west-2.amazonaws.com", "127.0.0.1:80"):
        headers = await credential.headers_for(OutgoingRequest(host, "/", b""), deadline=1e12)
        scopes.append(headers.decode().partition("Credential=AKIA1/")[2].split("/")[1])
    await credential.close()
    assert scopes == ["us-west-2", "eu-west-1"]


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", "us-east-1"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com:443", "us-gov-west-1"),
        ("vpce-1-a.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com", "ap-southeast-2"),
        ("bedrock-mantle.eu-central-1.api.aws", "eu-central-1"),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("proxy.internal", None),
    ],
)
def test_the_region_in_a_host(host: str, region: str | None) -> None:
    assert region_in(host) == region


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("kind", ["RequestTimeTooSkewed", "InvalidSignatureException"])
async def test_a_wrong_clock_is_a_failure_of_the_backend_that_is_not_charged(kind: str) -> None:
    """AWS refuses a request whose time differs by several minutes. The client cannot correct this."""
    verb = answer(
        {"message": "Signature expired"}, status=403, headers=[("x-amzn-errortype", kind)]
    )
    identity = AwsIdentity("eu-west-1")
    async with (
        Upstream(verb) as upstream,
        identified(identity, *upstream.two_urls, now=lambda: 0.0, failures_to_eject=1) as backend,
    ):
        outcome = await make(backend, make_call())
        assert set(backend.health().replicas.values()) == {"healthy"}
    assert upstream.requests[0].headers["x-amz-date"] == "19700101T000000Z"
    assert isinstance(outcome.error, BackendFailed)
    assert not outcome.error.charged


async def test_keys_that_expire_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def service(peer: Peer) -> None:
        # botocore itself would at once renew keys that expire within 15 minutes.
        name = f"ASIA{len(metadata.requests)}"
        await answer(_given(AccessKeyId=name, Expiration=_end(1000)))(peer)

    times = replace(QUICK, ahead_share=0.9999)
    async with Upstream(service) as metadata, Upstream(chat()) as upstream:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", metadata.url)
        async with identified(AwsIdentity("r"), upstream.url, times=times) as backend:
            await make(backend, make_call())
            await until(lambda: len(metadata.requests) >= 3)
            await make(backend, make_call())
    used = [_credential_of(request) for request in upstream.requests]
    assert used[0] == "ASIA1"
    assert used[1] in ("ASIA2", "ASIA3", "ASIA4")


@pytest.mark.usefixtures("keys")
async def test_keys_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-1")
    quoting: Verb = refuse(400, f"AKIA1 with {SECRET} and session-1")
    identity = AwsIdentity("r")
    async with Upstream(quoting) as upstream, identified(identity, upstream.url) as backend:
        outcome = await make(backend, make_call())
    assert outcome.error is not None
    assert outcome.error.message.endswith("[removed] with [removed] and [removed]")
