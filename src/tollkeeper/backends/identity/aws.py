"""Keys of AWS: from a file of profiles, a role that is taken by a federated token, a container's or a
machine's own role."""

import configparser
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from tollkeeper.backends.config import shown_url
from tollkeeper.backends.credentials import is_header_text
from tollkeeper.backends.identities import (
    AwsContainer,
    AwsInstance,
    AwsKeys,
    AwsProfile,
    AwsSource,
    AwsWebIdentity,
)
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.identity.files import read_secret_file, read_token_file
from tollkeeper.backends.identity.renewal import Expiring
from tollkeeper.backends.identity.sigv4 import SigningKeys
from tollkeeper.backends.identity.token_service import ask, check_success, post_form

_SESSION_NAME = "tollkeeper"
_SESSION_S = 3600
_MACHINE_TOKEN_S = 21600
_ROLES = "/latest/meta-data/iam/security-credentials/"
# Where containers get their keys without TLS: on the machine itself, of ECS and of EKS.
_PLAIN_HOSTS = frozenset(
    {"127.0.0.1", "::1", "localhost", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"}
)


async def aws_keys(
    source: AwsSource, *, deadline: float, now: Callable[[], float]
) -> Expiring[SigningKeys]:
    """`now` is in seconds since 1970. Raises IdentityFailure."""
    match source:
        case AwsKeys(access_key=access, secret_key=secret, session_token=token):
            return Expiring(SigningKeys(access, secret, token), None)
        case AwsProfile():
            return Expiring(read_profile(source), None)
        case AwsWebIdentity():
            return await _web_identity(source, deadline, now())
        case AwsContainer():
            return await _container(source, deadline, now())
        case AwsInstance():
            return await _instance(source, deadline, now())


def read_profile(source: AwsProfile) -> SigningKeys:
    """Raises IdentityFailure."""
    try:
        text = read_secret_file(source.file).decode()
        profiles = configparser.RawConfigParser()
        profiles.read_string(text)
    except (UnicodeDecodeError, configparser.Error):
        raise IdentityFailure(f"{source.file} is no file of profiles") from None
    if not profiles.has_section(source.profile):
        raise IdentityFailure(f"{source.file} has no profile {source.profile}")
    found = profiles[source.profile]
    token = found.get("aws_session_token") or found.get("aws_security_token") or ""
    return _keys(
        found.get("aws_access_key_id"), found.get("aws_secret_access_key"), token, str(source.file)
    )


async def _web_identity(
    source: AwsWebIdentity, deadline: float, now: float
) -> Expiring[SigningKeys]:
    fields = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": source.role,
        "RoleSessionName": _SESSION_NAME,
        "DurationSeconds": str(_SESSION_S),
        "WebIdentityToken": read_token_file(source.file),
    }
    answer = await post_form(source.sts_url, fields, deadline=deadline)
    check_success(answer)
    told: Any = answer.json()
    for name in ("AssumeRoleWithWebIdentityResponse", "AssumeRoleWithWebIdentityResult"):
        told = told.get(name) if isinstance(told, dict) else None
    given = told.get("Credentials") if isinstance(told, dict) else None
    if not isinstance(given, dict):
        raise IdentityFailure("the token service's answer has no keys")
    return _given_keys(given, given.get("SessionToken"), now)


async def _container(source: AwsContainer, deadline: float, now: float) -> Expiring[SigningKeys]:
    address = urlsplit(source.url)
    if address.scheme != "https" and address.hostname not in _PLAIN_HOSTS:
        raise IdentityFailure(f"{shown_url(source.url)!r} must start with https://")
    token = source.token if source.token_file is None else read_token_file(source.token_file)
    headers = {"authorization": token} if token else {}
    answer = await ask(source.url, deadline=deadline, headers=headers)
    check_success(answer)
    given = answer.json()
    return _given_keys(given, given.get("Token"), now)


async def _instance(source: AwsInstance, deadline: float, now: float) -> Expiring[SigningKeys]:
    """By the second version of the service, which asks for a token of its own first."""
    base = source.endpoint.rstrip("/")
    asked = {"x-aws-ec2-metadata-token-ttl-seconds": str(_MACHINE_TOKEN_S)}
    session = await ask(f"{base}/latest/api/token", deadline=deadline, method="PUT", headers=asked)
    check_success(session)
    headers = {"x-aws-ec2-metadata-token": session.body.decode("ascii").strip()}
    roles = await ask(f"{base}{_ROLES}", deadline=deadline, headers=headers)
    check_success(roles)
    role = roles.body.decode("ascii").strip().partition("\n")[0]
    if not is_header_text(role):
        raise IdentityFailure("this machine has no role")
    answer = await ask(f"{base}{_ROLES}{role}", deadline=deadline, headers=headers)
    check_success(answer)
    given = answer.json()
    return _given_keys(given, given.get("Token"), now)


def _given_keys(given: dict[str, Any], token: Any, now: float) -> Expiring[SigningKeys]:
    keys = _keys(given.get("AccessKeyId"), given.get("SecretAccessKey"), token, "the answer")
    return Expiring(keys, _end(given.get("Expiration")) - now)


def _keys(access: Any, secret: Any, token: Any, place: str) -> SigningKeys:
    texts = (access, secret, token or "")
    if not all(isinstance(text, str) for text in texts):
        raise IdentityFailure(f"{place} has no access key with its secret")
    if not is_header_text(access) or not secret or (token and not is_header_text(token)):
        raise IdentityFailure(f"{place} has an access key that is no header text")
    return SigningKeys(*texts)


def _end(written: Any) -> float:
    """The end of keys in seconds since 1970: STS writes a number in JSON, others a date."""
    if isinstance(written, int | float) and not isinstance(written, bool):
        return float(written)
    if not isinstance(written, str):
        raise IdentityFailure("the answer does not say when its keys expire")
    moment = datetime.fromisoformat(written.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise IdentityFailure("the end of the keys has no time zone")
    return moment.timestamp()
