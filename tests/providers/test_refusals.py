"""Tests refusals and redirects of a model server, and answers that are not valid HTTP."""

import asyncio
from pathlib import Path

import pytest

from tests.providers.faults import BOTH, check_failure, fault
from tests.support.backend_calls import KEY, make, make_call, routed
from tests.support.upstream import SSE_TYPE, Peer, Upstream, answer, chat, redirect, refuse
from tollkeeper.core.errors import BackendFailed, ProviderRejected, RateLimited
from tollkeeper.providers.refusals import STATUS_RULES, refusal_record

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


NO_CREDIT = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
)
LIMIT = "You have reached your specified %sAPI usage limits. You will regain access on 2026-12-01."


ACCOUNT_REFUSALS = [
    {"type": "invalid_request_error", "message": NO_CREDIT},
    {"type": "invalid_request_error", "message": LIMIT % ""},
    {"type": "invalid_request_error", "message": LIMIT % "workspace "},
    {"type": "invalid_request_error", "message": "This organization has been disabled."},
    {"type": "Arrearage", "code": "Arrearage", "message": "Is your account overdue?"},
    {"code": "billing_hard_limit_reached", "message": "Billing hard limit has been reached"},
]


@BOTH
@pytest.mark.parametrize("error", ACCOUNT_REFUSALS)
async def test_a_refusal_of_the_operators_account(error: dict[str, str], streamed: bool) -> None:
    """The client's request has no error, and only the operator learns about the account."""
    verb = answer({"type": "error", "error": error}, status=400)
    async with Upstream(verb) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=streamed))
        check_failure(outcome, BackendFailed, charged=False)
        assert str(outcome.error) == "The backend request failed."
        [report] = backend.health().reports
        assert "out of credit" in report.last_failure


def test_a_refusal_of_the_operators_account_with_status_200() -> None:
    for error in ACCOUNT_REFUSALS:
        failure = refusal_record({**error, "code": error.get("code", 400)}, secrets=())
        assert type(failure) is BackendFailed
        assert not failure.may_be_client_fault
        assert error["message"] not in (failure.message, failure.reason)


@BOTH
async def test_a_prompt_that_does_not_fit(streamed: bool) -> None:
    """llama.cpp advises to increase the context, which only the operator can do."""
    error = {
        "code": 400,
        "message": "request (9000 tokens) exceeds the available context size (4096 tokens), try "
        "increasing it",
        "type": "exceed_context_size_error",
    }
    for lengths, said in (
        (
            {"n_prompt_tokens": 9000, "n_ctx": 4096},
            "The prompt has 9000 tokens, and the model's context has room for 4096.",
        ),
        ({}, "The prompt does not fit into the model's context."),
    ):
        outcome = await fault(answer({"error": error | lengths}, status=400), streamed=streamed)
        check_failure(outcome, ProviderRejected, charged=False)
        assert str(outcome.error) == said


async def test_a_rejection_that_quotes_a_text_about_accounts() -> None:
    quoting = f"messages.0.content: {NO_CREDIT} is not valid"
    outcome = await fault(refuse(400, quoting))
    check_failure(outcome, ProviderRejected, charged=False)
    assert outcome.error is not None
    assert outcome.error.message == quoting


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
