"""Tests AWS signatures with the examples that AWS publishes (Signature Version 4 test suite)."""

from datetime import UTC, datetime

import pytest

from tests.support.tables import each
from tollkeeper.providers.identity.sigv4 import SignedRequest, SigningKeys, signing_headers

_NOW = datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp()
_KEYS = SigningKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
_HOST = {"host": "example.amazonaws.com"}
_SESSION_TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeo"
    "IYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5V"
    "SXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yj"
    "c8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)
_FORM = {"content-type": "application/x-www-form-urlencoded", **_HOST}


@each(
    ("request_", "signed", "signature"),
    [
        pytest.param(
            SignedRequest("POST", "/", _HOST, b""),
            "host;x-amz-date",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            id="post-vanilla",
        ),
        pytest.param(
            SignedRequest("POST", "/", _FORM, b"Param1=value1"),
            "content-type;host;x-amz-date",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            id="post-x-www-form-urlencoded",
        ),
        pytest.param(
            SignedRequest("GET", "/?Param2=value2&Param1=value1", _HOST, b""),
            "host;x-amz-date",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            id="get-vanilla-query-order-key-case",
        ),
        pytest.param(
            SignedRequest("GET", "/", {"my-header1": "value1", **_HOST}, b""),
            "host;my-header1;x-amz-date",
            None,
            id="a further header",
        ),
    ],
)
def test_published_examples(request_: SignedRequest, signed: str, signature: str | None) -> None:
    added = signing_headers(_KEYS, request_, region="us-east-1", service="service", now=_NOW)
    assert added["x-amz-date"] == "20150830T123600Z"
    head, _, found = added["authorization"].rpartition("Signature=")
    assert head == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders={signed}, "
    )
    assert signature is None or found == signature
    assert len(found) == 64


def test_a_session_token_is_signed() -> None:
    keys = SigningKeys(_KEYS.access_key, _KEYS.secret_key, _SESSION_TOKEN)
    vanilla = SignedRequest("POST", "/", _HOST, b"")
    added = signing_headers(keys, vanilla, region="us-east-1", service="service", now=_NOW)
    assert added["x-amz-security-token"] == _SESSION_TOKEN
    assert added["authorization"].endswith(
        "SignedHeaders=host;x-amz-date;x-amz-security-token, "
        "Signature=85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"
    )


@each(
    "change",
    [
        {"path": "/model/b/converse"},
        {"path": "/model/a%253A0/converse"},
        {"body": b"{ }"},
        {"headers": {"host": "bedrock-runtime.us-west-2.amazonaws.com"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_is_covered(change: dict[str, object]) -> None:
    fields = {
        "method": "POST",
        "path": "/model/a%3A0/converse",
        "headers": {"host": "bedrock-runtime.us-east-1.amazonaws.com"},
        "body": b"{}",
    }
    one, other = (
        signing_headers(
            _KEYS,
            SignedRequest(**written),
            region="us-east-1",
            service="bedrock",
            now=_NOW,
        )
        for written in (fields, {**fields, **change})
    )
    assert one["authorization"] != other["authorization"]


def test_keys_are_not_shown() -> None:
    shown = repr(SigningKeys("AKID", "the-secret", "the-session"))
    assert not any(word in shown for word in ("AKID", "the-secret", "the-session"))
