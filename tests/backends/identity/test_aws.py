"""Keys of AWS from every place that has them, and requests that are signed with them."""

import hashlib
import hmac
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.backends.identity.token_servers import (
    SECRET,
    form,
    identified,
    opened,
    origin,
)
from tests.support.backend_calls import make, make_call, until
from tests.support.upstream import Peer, Received, Upstream, Verb, answer, chat, refuse
from tollkeeper.backends.credentials import OutgoingRequest
from tollkeeper.backends.identities import (
    AwsContainer,
    AwsIdentity,
    AwsInstance,
    AwsKeys,
    AwsProfile,
    AwsSource,
    AwsWebIdentity,
    region_in,
)
from tollkeeper.backends.identity.aws import aws_keys
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.identity.sigv4 import SigningKeys
from tollkeeper.domain.errors import BackendFailed, Unavailable

_NOW = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
_GIVEN = {
    "AccessKeyId": "ASIA1",
    "SecretAccessKey": SECRET,
    "Token": "session-1",
    "Expiration": "2030-01-01T06:00:00Z",
}
_KEYS = SigningKeys("ASIA1", SECRET, "session-1")


async def _obtained(source: AwsSource) -> tuple[SigningKeys, float | None]:
    found = await aws_keys(source, deadline=1e12, now=lambda: _NOW)
    return found.value, found.lifetime_s


async def test_a_machine_asks_for_a_session_first() -> None:
    async def metadata(peer: Peer) -> None:
        path = peer.request.path
        texts = {"/latest/api/token": b"imds-token", _ROLES: b"gateway-role\n"}
        body = texts.get(path) or json.dumps(_GIVEN).encode()
        await answer(body, content_type="text/plain")(peer)

    async with Upstream(metadata) as service:
        found = await _obtained(AwsInstance(origin(service)))
    assert found == (_KEYS, 21600.0)
    session, roles, role = service.requests
    assert session.head.startswith(b"PUT /latest/api/token ")
    assert session.headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    assert (roles.path, role.path) == (_ROLES, f"{_ROLES}gateway-role")
    assert role.headers["x-aws-ec2-metadata-token"] == "imds-token"


_ROLES = "/latest/meta-data/iam/security-credentials/"


async def test_a_container_reads_its_token_anew(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("pod-token\n")
    async with Upstream(answer(_GIVEN)) as service:
        assert await _obtained(AwsContainer(f"{service.url}/creds", "plain")) == (_KEYS, 21600.0)
        assert await _obtained(AwsContainer(f"{service.url}/creds", "", file)) == (_KEYS, 21600.0)
    sent = [request.headers["authorization"] for request in service.requests]
    assert sent == ["plain", "pod-token"]


async def test_a_container_is_not_asked_over_a_network_without_tls() -> None:
    with pytest.raises(IdentityFailure, match="must start with https://"):
        await _obtained(AwsContainer("http://10.0.0.1/creds"))


async def test_a_role_is_taken_with_a_federated_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("theirs")
    credentials = {
        "AccessKeyId": "ASIA1",
        "SecretAccessKey": SECRET,
        "SessionToken": "session-1",
        "Expiration": _NOW + 3600,
    }
    result = {"AssumeRoleWithWebIdentityResult": {"Credentials": credentials}}
    body = {"AssumeRoleWithWebIdentityResponse": result}
    async with Upstream(answer(body)) as sts:
        source = AwsWebIdentity("arn:aws:iam::1:role/gateway", file, sts.url)
        assert await _obtained(source) == (_KEYS, 3600.0)
    (asked,) = sts.requests
    assert asked.headers["accept"] == "application/json"
    sent = form(asked)
    assert (sent["Action"], sent["RoleArn"]) == (
        "AssumeRoleWithWebIdentity",
        "arn:aws:iam::1:role/gateway",
    )
    assert sent["WebIdentityToken"] == "theirs"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {**_GIVEN, "AccessKeyId": None},
        {**_GIVEN, "AccessKeyId": "two words"},
        {**_GIVEN, "SecretAccessKey": ""},
        {**_GIVEN, "Token": "a\r\nb: c"},
        {**_GIVEN, "Expiration": None},
        {**_GIVEN, "Expiration": "2030-01-01T06:00:00"},
    ],
)
async def test_an_answer_without_keys(given: dict[str, Any]) -> None:
    async with Upstream(answer(given)) as service:
        with pytest.raises(IdentityFailure) as failure:
            await _obtained(AwsContainer(service.url))
    assert SECRET not in str(failure.value)


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
        (None, "cannot be read"),
        ("nonsense", "no file of profiles"),
        ("[other]\n", "has no profile gateway"),
        ("[gateway]\n", "no access key"),
    ],
)
async def test_a_file_without_the_profile(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "credentials"
    if content is not None:
        file.write_text(content)
    with pytest.raises(IdentityFailure, match=reason):
        await _obtained(AwsProfile(file, "gateway"))
    async with (
        Upstream(chat()) as upstream,
        identified(AwsIdentity(AwsProfile(file, "gateway"), "r"), upstream.url) as backend,
    ):
        assert isinstance((await make(backend, make_call())).error, Unavailable)
    assert upstream.requests == []


def _credential_of(request: Received) -> str:
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


async def test_a_changed_file_changes_the_keys_of_the_next_call(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(_PROFILES)
    with capture_logs() as logs:
        async with (
            Upstream(chat()) as upstream,
            identified(AwsIdentity(AwsProfile(file, "gateway"), "r"), upstream.url) as backend,
        ):
            await make(backend, make_call())
            file.write_text(_PROFILES.replace("AKIA1", "AKIA-2"))
            await make(backend, make_call())
            # In the middle of a rotation the last keys stay in use.
            file.write_text("")
            await make(backend, make_call())
    assert [_credential_of(request) for request in upstream.requests] == [
        "AKIA1",
        "AKIA-2",
        "AKIA-2",
    ]
    assert upstream.requests[0].headers["x-amz-security-token"] == "session-1"
    assert "secret-1" not in str(logs)


def _expected_signature(request: Received, secret: str, region: str) -> str:
    """Written out by AWS's document, apart from the code that is tested."""
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
async def test_every_request_is_signed(session: str) -> None:
    identity = AwsIdentity(AwsKeys("AKIA1", SECRET, session), "eu-west-1")
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


async def test_the_region_is_that_of_the_replica() -> None:
    credential = opened(AwsIdentity(AwsKeys("AKIA1", SECRET), "eu-west-1"))
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


@pytest.mark.parametrize("kind", ["RequestTimeTooSkewed", "InvalidSignatureException"])
async def test_a_wrong_clock_is_a_failure_of_the_backend_that_is_not_charged(kind: str) -> None:
    """AWS refuses a request that is more than minutes old; that is nothing the caller can mend."""
    verb = answer(
        {"message": "Signature expired"}, status=403, headers=[("x-amzn-errortype", kind)]
    )
    identity = AwsIdentity(AwsKeys("AKIA1", SECRET), "eu-west-1")
    async with (
        Upstream(verb) as upstream,
        identified(identity, *upstream.two_urls, now=lambda: 0.0, failures_to_eject=1) as backend,
    ):
        outcome = await make(backend, make_call())
        assert set(backend.health().replicas.values()) == {"healthy"}
    assert upstream.requests[0].headers["x-amz-date"] == "19700101T000000Z"
    assert isinstance(outcome.error, BackendFailed)
    assert not outcome.error.charged


async def test_keys_that_expire_are_renewed() -> None:
    names = iter(("ASIA1", "ASIA2", "ASIA3"))

    async def service(peer: Peer) -> None:
        end = datetime.fromtimestamp(datetime.now(UTC).timestamp() + 8, UTC).isoformat()
        await answer({**_GIVEN, "AccessKeyId": next(names), "Expiration": end})(peer)

    async with (
        Upstream(service) as metadata,
        Upstream(chat()) as upstream,
        identified(AwsIdentity(AwsContainer(metadata.url), "r"), upstream.url) as backend,
    ):
        await make(backend, make_call())
        await until(lambda: len(metadata.requests) == 2)
        await until(lambda: metadata.under_way == 0)
        await make(backend, make_call())
    used = [_credential_of(request) for request in upstream.requests]
    assert used[0] == "ASIA1"
    assert used[1] in ("ASIA1", "ASIA2")


async def test_keys_are_not_shown() -> None:
    quoting: Verb = refuse(400, f"AKIA1 with {SECRET} and session-1")
    identity = AwsIdentity(AwsKeys("AKIA1", SECRET, "session-1"), "r")
    assert SECRET not in repr(identity)
    assert SECRET not in identity.described
    async with Upstream(quoting) as upstream, identified(identity, upstream.url) as backend:
        outcome = await make(backend, make_call())
    assert outcome.error is not None
    assert outcome.error.message.endswith("[removed] with [removed] and [removed]")
