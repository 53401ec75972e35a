"""Tests every fault of an HTTP backend: the client's response and the resulting ledger entries."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.scripted_gateway import (
    ScriptedGateway,
    answering_gateway,
    eventually,
    read_stream,
    scripted_gateway,
)
from tests.support.upstream import (
    DONE,
    JSON_TYPE,
    SSE_TYPE,
    Peer,
    Verb,
    answer,
    chat,
    chat_records,
    chunk,
    close_before_headers,
    completion,
    cut,
    drip,
    end_after,
    endless,
    fat_line,
    gzip_bomb,
    hang,
    redirect,
    refuse,
    reset_after,
    reset_before_headers,
    sse,
    stream,
    unused_url,
)

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
SECRET_ADDRESS = "http://10.1.2.3:8000/v1"


@pytest.fixture(scope="module")
async def hasty(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway with a short deadline, for calls that reach the deadline."""
    async with answering_gateway(
        data_dir,
        conninfo,
        limits={"inference_deadline_s": 1.5},
        backend={"idle_timeout_s": 0.4},
    ) as running:
        yield running
        await running.every_connection_ends()


@pytest.fixture
async def scripted(scripted: ScriptedGateway) -> AsyncIterator[ScriptedGateway]:
    """Checks after each test that no task, socket or file of its calls is left."""
    async with scripted.leaving_nothing():
        yield scripted


@dataclass(frozen=True)
class Fault:
    """A fault before any output, and the expected response and ledger entry."""

    verb: Verb
    status: int
    code: str
    # The reservation's status: "released", or "unsettled" if it is unknown whether the call ran.
    books: str = "released"
    retry_after: str | None = None
    type: str = "api_error"


def _bad_gateway(verb: Verb, books: str = "released") -> Fault:
    return Fault(verb, 502, "provider_unavailable", books)


def _busy(retry_after: str | None, expected: str) -> Fault:
    headers = [] if retry_after is None else [("retry-after", retry_after)]
    verb = refuse(429, headers=headers)
    return Fault(verb, 429, "rate_limit_exceeded", retry_after=expected, type="rate_limit_error")


def _invalid(verb: Verb) -> Fault:
    return Fault(verb, 422, "unprocessable", type="invalid_request_error")


async def _broken_head(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello")
    await peer.until_left()


# U3, U4 and so on number the kinds of faults. Each fault is played for JSON and for a stream.
BEFORE_OUTPUT: dict[str, Fault] = {
    "U3 reset before headers": _bad_gateway(reset_before_headers(), "unsettled"),
    "U3 end before headers": _bad_gateway(close_before_headers(), "unsettled"),
    "U3 not HTTP": _bad_gateway(_broken_head, "unsettled"),
    "U4 reset after headers": _bad_gateway(reset_after(content_type=SSE_TYPE), "unsettled"),
    "U4 reset after headers of JSON": _bad_gateway(
        reset_after(content_type=JSON_TYPE), "unsettled"
    ),
    "U10 HTML": _bad_gateway(answer(b"<html>", content_type="text/html"), "unsettled"),
    "U10 no content type": _bad_gateway(answer(content_type=None), "unsettled"),
    "U18 gzip bomb": _bad_gateway(gzip_bomb(64 << 20), "unsettled"),
    "U18 gzip bomb of a stream": _bad_gateway(
        gzip_bomb(64 << 20, content_type=SSE_TYPE), "unsettled"
    ),
    "U18 zstd": _bad_gateway(answer(headers=[("content-encoding", "zstd")]), "unsettled"),
    "U19 400": _invalid(refuse(400, "max_tokens is too large")),
    "U19 422": _invalid(refuse(422, "no such tool")),
    **{
        f"{status} is our trouble, not the caller's": _bad_gateway(refuse(status))
        for status in (401, 402, 403, 404, 405, 409, 413, 418, 500, 501, 503, 529)
    },
    **{
        f"{status} does not say whether the call ran": _bad_gateway(refuse(status), "unsettled")
        for status in (408, 502, 504)
    },
    "5xx in HTML": _bad_gateway(answer(b"<h1>oops</h1>", status=500, content_type="text/html")),
    "204": _bad_gateway(answer(b"", status=204, content_type=None), "unsettled"),
    "U20 busy": _busy(None, "5"),
    "U20 busy for 0 s": _busy("0", "1"),
    "U20 busy for 5 s": _busy("5", "5"),
    "U20 busy for 120 s": _busy("120", "120"),
    "U20 busy for long": _busy("1000000000", "120"),
    "U20 busy for abc": _busy("abc", "5"),
    "U20 busy for less than nothing": _busy("-3", "5"),
    "U20 busy until a date": _busy("Wed, 21 Oct 2026 07:28:00 GMT", "5"),
    "U22 redirect": _bad_gateway(redirect("http://169.254.169.254/latest/meta-data")),
    "U22 permanent redirect": _bad_gateway(redirect("/v1/elsewhere", status=308)),
}


def assert_refusal(found: httpx2.Response, fault: Fault) -> None:
    assert_error(found, fault.status, fault.code)
    assert found.headers["content-type"] == "application/json"
    assert found.json()["error"]["type"] == fault.type
    assert found.headers.get("retry-after") == fault.retry_after
    # If the backend may have charged the call, an automatic retry could spend twice.
    charged = "false" if fault.books == "unsettled" else None
    assert found.headers.get("x-should-retry") == charged
    assert "127.0.0.1" not in found.text


async def assert_books(scripted: ScriptedGateway, found: httpx2.Response, books: str) -> None:
    """Checks that the only reservation is released, or unsettled with its whole hold."""
    entry = await scripted.entry_of(found)
    balance = await scripted.balance()
    assert (entry.status, entry.cost, balance["settled"]) == (books, 0, 0)
    assert balance["unsettled"] == (entry.hold if books == "unsettled" else 0)
    assert balance["held"] == 0
    assert balance["resolutions"] == (books == "released")


@BOTH
@pytest.mark.parametrize("row", BEFORE_OUTPUT)
async def test_fault_before_output(scripted: ScriptedGateway, row: str, streamed: bool) -> None:
    fault = BEFORE_OUTPUT[row]
    calls = len(scripted.upstream.requests)
    scripted.upstream.play(fault.verb)
    found = await scripted.chat(stream=streamed)
    assert_refusal(found, fault)
    assert len(scripted.upstream.requests) == calls + 1, "there is no other replica to try"
    await assert_books(scripted, found, fault.books)


@pytest.mark.parametrize(
    ("streamed", "content_type"), [(True, JSON_TYPE), (False, SSE_TYPE)], ids=["stream", "json"]
)
async def test_the_other_kind_of_answer(
    scripted: ScriptedGateway, streamed: bool, content_type: str
) -> None:
    """U10."""
    scripted.upstream.play(answer(content_type=content_type))
    found = await scripted.chat(stream=streamed)
    assert_refusal(found, _bad_gateway(chat(), "unsettled"))
    await assert_books(scripted, found, "unsettled")


@pytest.mark.parametrize(
    ("record", "status", "code"),
    [
        ({"message": "too long", "code": 400}, 422, "unprocessable"),
        ({"message": "busy", "code": 429}, 429, "rate_limit_exceeded"),
        ({"message": "broke", "code": 500}, 502, "provider_unavailable"),
        ("broke", 502, "provider_unavailable"),
    ],
)
@BOTH
async def test_an_error_where_the_answer_should_be(
    scripted: ScriptedGateway, record: Any, status: int, code: str, streamed: bool
) -> None:
    error = {"error": record}
    scripted.upstream.play(stream([sse(error)]) if streamed else answer(error))
    found = await scripted.chat(stream=streamed)
    assert_error(found, status, code)
    await assert_books(scripted, found, "released")


@BOTH
async def test_what_the_backend_says_is_made_fit_to_show(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    """U19."""
    said = (
        f"bad \x1b[31m request to {SECRET_ADDRESS}/chat \u202e at {scripted.upstream.url} "
        + "x" * 5000
    )
    scripted.upstream.play(refuse(400, said))
    found = await scripted.chat(stream=streamed)
    shown = found.json()["error"]["message"]
    assert shown.startswith("bad ")
    assert len(shown.encode()) <= 2048
    for hidden in ("10.1.2.3", "127.0.0.1", "\x1b", "\u202e", "http://"):
        assert hidden not in shown


@BOTH
async def test_nobody_listens(
    shared_scripted: ScriptedGateway, data_dir: Path, conninfo: str, streamed: bool
) -> None:
    """U1: The connection is refused, or the server at an HTTPS address does not use TLS."""
    plain = shared_scripted.upstream.url.replace("http://", "https://")
    for url in (unused_url(), plain):
        calls = len(shared_scripted.upstream.requests)
        async with scripted_gateway(
            data_dir,
            conninfo,
            shared_scripted.upstream,
            urls=(url,),
            backend={"connect_timeout_s": 0.5},
        ) as scripted:
            found = await scripted.chat(stream=streamed)
            assert_refusal(found, _bad_gateway(chat()))
            await assert_books(scripted, found, "released")
        assert len(shared_scripted.upstream.requests) == calls


async def _silent_after_head(peer: Peer) -> None:
    await peer.send_head(content_type=SSE_TYPE)
    await peer.until_left()


# Backends that send no event until the deadline, and the reservation's expected status.
LATE: dict[str, tuple[Verb, str]] = {
    "U2 hang": (hang(), "unsettled"),
    "U7 silence after headers": (_silent_after_head, "unsettled"),
    "U7 drip before the first event": (drip(sse(chunk("late")), pause_s=0.05), "unsettled"),
    "U7 nothing but comments": (endless(b": wait\n\n"), "unsettled"),
}


@pytest.mark.parametrize("row", LATE)
async def test_nothing_until_the_deadline(hasty: ScriptedGateway, row: str) -> None:
    verb, books = LATE[row]
    scripted = await hasty.with_tenant()
    async with scripted.leaving_nothing():
        scripted.upstream.play(verb)
        found = await scripted.chat(stream=True)
        assert_refusal(found, Fault(verb, 504, "timeout", books, type="timeout_error"))
        await assert_books(scripted, found, books)


async def test_json_until_the_deadline(hasty: ScriptedGateway) -> None:
    body = b'{"choices":' + b" " * 1000
    for verb, books in (
        (hang(), "unsettled"),
        (drip(body, pause_s=0.02, content_type=JSON_TYPE), "unsettled"),
    ):
        scripted = await hasty.with_tenant()
        async with scripted.leaving_nothing():
            scripted.upstream.play(verb)
            found = await scripted.chat()
            assert_refusal(found, Fault(verb, 504, "timeout", books, type="timeout_error"))
            await assert_books(scripted, found, books)


def pieces(count: int) -> list[bytes]:
    return [sse(chunk(f"{number} ")) for number in range(count)]


BROKEN: dict[str, bytes] = {
    "bad UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
    "no JSON": b"data: hello\n\n",
    "half JSON": b'data: {"choices":[\n\n',
    "no object": b"data: []\n\n",
    "no colon": b"data\n\n",
    "empty data": b"data:\n\n",
    "NUL in id, then no JSON": b"id: \x00\ndata: \x00\n\n",
    "choices of text": b'data: {"choices":"x"}\n\n',
    "content of a number": b'data: {"choices":[{"index":0,"delta":{"content":7}}]}\n\n',
    "a choice too many": sse(chunk("b", index=1)),
    "an error record": sse({"error": {"message": f"at {SECRET_ADDRESS}", "code": 400}}),
    "the end too early": DONE,
    "text after the end": sse(chunk(finish="stop")) + sse(chunk("more")),
}
# Streams that fail after some pieces: the number of pieces, and the fault.
AFTER_OUTPUT: dict[str, tuple[int, Verb]] = {
    **{f"U5 reset after {count}": (count, reset_after(count)) for count in (1, 2, 3, 7, 20)},
    **{f"U6 end after {count}": (count, end_after(count)) for count in (1, 2, 7)},
    "U6 end after the finish": (3, end_after(3, finished=True)),
    **{
        f"U8 {name}": (2, cut(b"".join(pieces(2)) + data + b"".join(chat_records())))
        for name, data in BROKEN.items()
    },
    "U16 one endless line": (1, fat_line(4 << 20, before=sse(chunk("a")))),
}


def assert_broken_stream(found: httpx2.Response, code: str) -> str:
    """Checks for status 200 and one error record with the interface's fields. Returns the text before it."""
    assert found.status_code == 200
    said = read_stream(found.text)
    assert not said.done
    assert said.error is not None
    assert set(said.error) == {"code", "message", "type", "param", "request_id", "doc_url"}
    assert said.error["code"] == code
    assert said.error["request_id"] == found.headers["x-request-id"]
    assert "10.1.2.3" not in found.text
    return said.text


@pytest.mark.parametrize("row", AFTER_OUTPUT)
async def test_fault_after_output(scripted: ScriptedGateway, row: str) -> None:
    count, verb = AFTER_OUTPUT[row]
    scripted.upstream.play(verb)
    found = await scripted.chat(stream=True)
    text = assert_broken_stream(found, "provider_unavailable")
    assert text in ("".join(f"{number} " for number in range(count)), "a")
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost == entry.delivered_pieces(count, text)
    assert (await scripted.balance())["settled"] == entry.cost


async def test_a_stream_that_falls_silent(hasty: ScriptedGateway) -> None:
    """U7: A stream that sends only single bytes after its beginning times out."""
    scripted = await hasty.with_tenant()
    async with scripted.leaving_nothing():
        scripted.upstream.play(drip(sse(chunk("late")), before=b"".join(pieces(3)), pause_s=0.05))
        found = await scripted.chat(stream=True)
        assert assert_broken_stream(found, "timeout") == "0 1 2 "
        entry = await scripted.entry_of(found)
        assert (entry.status, entry.cost) == ("settled", entry.delivered_pieces(3))


async def test_a_stream_without_end_is_cut_at_its_bound(scripted: ScriptedGateway) -> None:
    """U17: The tenant pays at most for the tokens that the client asked for, even if the backend sends more."""
    scripted.upstream.play(endless())
    found = await scripted.chat(stream=True, max_tokens=5)
    assert_broken_stream(found, "provider_unavailable")
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("settled", entry.delivered(5))
    assert entry.hold == entry.at_most(5)
    assert (await scripted.balance())["settled"] == entry.cost


async def test_an_end_without_text_is_paid_for_its_prompt(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(stream([sse(chunk(finish="stop"))]))
    found = await scripted.chat(stream=True)
    assert assert_broken_stream(found, "provider_unavailable") == ""
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.estimated, entry.cost) == ("settled", True, entry.delivered(0))


async def test_json_with_a_choice_missing_is_paid_and_fails(scripted: ScriptedGateway) -> None:
    """U23 for a JSON answer: a missing choice is an error."""
    scripted.upstream.play(answer(completion(choices=3)))
    found = await scripted.chat(n=4)
    assert_error(found, 502, "provider_unavailable")
    assert found.headers["x-should-retry"] == "false"
    entry = await scripted.entry_of(found)
    assert (entry.status, entry.choices, entry.estimated) == ("settled", 4, False)
    assert entry.hold == entry.at_most(4 * 1024)
    assert (await scripted.balance())["resolutions"] == 1


@BOTH
async def test_a_call_whose_deadline_has_passed_is_not_sent(
    hasty: ScriptedGateway, streamed: bool
) -> None:
    """The hold waits for a locked account, and an idle connection to the backend could be used at once."""
    tenant = await hasty.with_tenant()
    assert (await tenant.chat()).status_code == 200
    sent = len(hasty.upstream.requests)
    services = hasty.gateway.services
    async with services.database.transaction() as connection:
        await connection.execute(
            "SELECT FROM accounts WHERE organization_id = %s FOR UPDATE",
            (tenant.tenant.organization_id,),
        )
        call = asyncio.create_task(tenant.chat(stream=streamed))
        await eventually(lambda: services.inference.running == 1)
        await asyncio.sleep(1.6)
    answered = await call
    assert_error(answered, 504, "timeout")
    assert (await tenant.entry_of(answered)).status == "released"
    assert len(hasty.upstream.requests) == sent
