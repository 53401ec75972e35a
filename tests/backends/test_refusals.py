"""Tests refusals and redirects of a model server, and answers that are not valid HTTP."""

import asyncio
from pathlib import Path

import pytest

from tests.backends.faults import BOTH, check_failure, fault
from tests.support.backend_calls import KEY
from tests.support.upstream import (
    SSE_TYPE,
    Peer,
    Upstream,
    answer,
    chat,
    redirect,
    refuse,
)
from tollkeeper.backends.refusals import STATUS_RULES
from tollkeeper.domain.errors import (
    BackendFailed,
    ProviderRejected,
    RateLimited,
)

# Refusals and redirects (faults U19, U20 and U22 in docs/conformance.md).


@BOTH
@pytest.mark.parametrize("status", [400, 422])
async def test_provider_rejection(status: int, streamed: bool) -> None:
    outcome = await fault(refuse(status, "max_tokens is too large"), streamed=streamed)
    check_failure(outcome, ProviderRejected, charged=False)
    assert outcome.error is not None
    assert outcome.error.message == "max_tokens is too large"


async def test_provider_rejection_is_sanitised() -> None:
    async def tell_all(peer: Peer) -> None:
        host = peer.request.headers["host"]
        message = (
            f"bad\x00 \x1b[31mkey {KEY} at http://{host}/v1/chat/completions or {host} "
            f"see HTTPS://internal.example/x\u202e\n" + "ż" * 5000
        )
        await refuse(400, message)(peer)

    outcome = await fault(tell_all)
    check_failure(outcome, ProviderRejected, charged=False)
    assert outcome.error is not None
    message = outcome.error.message
    assert len(message.encode()) <= 2048
    assert message.startswith("bad   [31mkey [removed] at [removed] or [removed] see [removed]")
    assert "internal" not in message
    assert message.replace(" ", "").isprintable()


@pytest.mark.parametrize(
    "body",
    [b"", b"no", b"\xff", b"[]", b'{"error": "text"}', b'{"error": {"message": {"a": 1}}}', b"{}"],
)
async def test_provider_rejection_without_a_message(body: bytes) -> None:
    outcome = await fault(answer(body, status=400))
    check_failure(outcome, ProviderRejected, charged=False)
    assert outcome.error is not None
    assert outcome.error.message == "The backend refused the request."


async def test_provider_rejection_with_an_endless_body() -> None:
    async def pour(peer: Peer) -> None:
        await peer.send_head(400, "application/json")
        while not peer.left:
            await peer.send_chunk(b"x" * 65536)

    check_failure(await fault(pour), ProviderRejected, charged=False)


@BOTH
@pytest.mark.parametrize(
    ("status", "charged"),
    [
        *((status, False) for status in (401, 403, 404, 418, 500, 503)),
        *((status, True) for status in (201, 204, 408, 502, 504)),
    ],
)
async def test_other_statuses(status: int, charged: bool, streamed: bool) -> None:
    verb = refuse(status, "secret detail") if status != 204 else redirect("", status=204)
    outcome = await fault(verb, streamed=streamed)
    check_failure(outcome, BackendFailed, charged=charged)
    assert outcome.error is not None
    assert "secret" not in outcome.error.message


def test_every_status_has_its_rule_and_every_rule_its_row_in_the_documents() -> None:
    listed = [rule.statuses for rule in STATUS_RULES if not isinstance(rule.statuses, range)]
    named = [status for statuses in listed for status in statuses]
    assert len(set(named)) == len(named), "no status has two rules of its own"
    assert {status for rule in STATUS_RULES for status in rule.statuses} == {*range(200, 600)}
    document = (Path(__file__).parents[2] / "docs" / "unsettled.md").read_text()
    for rule in STATUS_RULES:
        of_many = isinstance(rule.statuses, range)
        statuses = "" if of_many else f"| {', '.join(map(str, rule.statuses))} "
        books = "unsettled" if rule.may_have_run else "released"
        # An error in the request is an error on every replica.
        asked_again = not rule.may_have_run and rule.statuses != (400, 422)
        replica = "may be asked" if asked_again else "no"
        assert f"{statuses}| {rule.reason} | {replica} | {books} |" in document


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5),
        ("0", 1),
        ("120", 120),
        ("121", 120),
        ("1000000000", 120),
        ("9" * 5000, 5),
        ("abc", 5),
        ("-3", 5),
        ("1.5", 5),
        ("", 5),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 5),
        (None, 5),
    ],
)
async def test_rate_limited(header: str | None, seconds: int) -> None:
    headers = [] if header is None else [("retry-after", header)]
    outcome = await fault(refuse(429, headers=headers))
    check_failure(outcome, RateLimited, charged=False)
    assert outcome.error is not None
    assert outcome.error.retry_after_s == seconds


@BOTH
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int, streamed: bool) -> None:
    async with Upstream(chat()) as target:
        verb = redirect(target.url + "/chat/completions", status=status)
        check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=False)
        assert target.connections == 0


@BOTH
@pytest.mark.parametrize(
    "head",
    [
        b"\x00\xff\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_not_http(head: bytes, streamed: bool) -> None:
    async def verb(peer: Peer) -> None:
        await peer.send(head)
        await asyncio.sleep(0.01)
        peer.close()

    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
async def test_broken_chunk(streamed: bool) -> None:
    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=SSE_TYPE if streamed else "application/json")
        await peer.send(b"ZZ\r\nhello\r\n")
        await peer.until_left()

    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
async def test_a_501_that_names_an_option_is_a_failure(streamed: bool) -> None:
    error = {"message": "no", "type": "option_unsupported", "param": "seed"}
    outcome = await fault(answer({"error": error}, status=501), streamed=streamed)
    check_failure(outcome, BackendFailed, charged=False)
