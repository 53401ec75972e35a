"""Every fault of a model server: the right error, whether it may have been charged, nothing left."""

import asyncio
import datetime
import ipaddress
import json
import resource
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.backends.calls import KEY, Outcome, make, make_call, routed, until
from tests.upstream import (
    DONE,
    SSE_TYPE,
    USAGE,
    Peer,
    Upstream,
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
    unanswered_url,
    unused_url,
    usage_chunk,
)
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)
from tollkeeper.domain.inference import Usage

BOTH = pytest.mark.parametrize("streamed", [False, True])


async def fault(
    verb: Verb, *, streamed: bool = False, deadline_s: float = 10, **settings: Any
) -> Outcome:
    """What comes of one call to an upstream with this fault, after which its socket is closed."""
    async with Upstream(verb) as upstream, routed(upstream.url, **settings) as backend:
        outcome = await make(backend, make_call(streamed=streamed), deadline_s=deadline_s)
        assert len(upstream.requests) == 1
        return outcome


def check(outcome: Outcome, error: type[TollkeeperError], *, charged: bool, text: str = "") -> None:
    assert type(outcome.error) is error
    assert outcome.error.charged is charged
    assert outcome.text() == text
    assert outcome.accepted is bool(text)
    assert KEY not in outcome.error.message
    assert "127.0.0.1" not in outcome.error.message


# U1: no connection.


@BOTH
async def test_connect_refused(streamed: bool) -> None:
    async with routed(unused_url()) as backend:
        outcome = await make(backend, make_call(streamed=streamed))
        check(outcome, BackendFailed, charged=False)


async def test_connect_timeout() -> None:
    with unanswered_url() as url:
        async with routed(url, connect_timeout_s=0.05) as backend:
            check(await make(backend, make_call()), BackendFailed, charged=False)


async def test_deadline_while_connecting() -> None:
    with unanswered_url() as url:
        async with routed(url) as backend:
            outcome = await make(backend, make_call(), deadline_s=0.05)
            check(outcome, DeadlineExceeded, charged=False)


async def test_leaving_while_connecting() -> None:
    with unanswered_url() as url:
        async with routed(url) as backend:
            task = asyncio.create_task(make(backend, make_call()))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_tls_is_not_downgraded() -> None:
    async with Upstream(chat()) as upstream:
        url = upstream.url.replace("http://", "https://")
        async with routed(url, connect_timeout_s=0.5) as backend:
            check(await make(backend, make_call()), BackendFailed, charged=False)
        assert upstream.requests == []


async def test_tls_certificate_is_verified(tmp_path: Path) -> None:
    context, ca_file = make_certificate(tmp_path)
    async with Upstream(chat(), tls=context) as upstream:
        async with routed(upstream.url) as backend:
            check(await make(backend, make_call()), BackendFailed, charged=False)
        assert upstream.requests == []
        async with routed(upstream.url, tls_ca_file=str(ca_file)) as backend:
            (await make(backend, make_call())).check_complete()
            (await make(backend, make_call(streamed=True))).check_complete()
        name = upstream.url.replace("127.0.0.1", "localhost")
        async with routed(name, tls_ca_file=str(ca_file)) as backend:
            check(await make(backend, make_call()), BackendFailed, charged=False)


def make_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A certificate for the loopback address, good for whoever trusts its file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "upstream")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "upstream.pem", folder / "upstream.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return context, certificate_file


# U2 to U7: the connection.


@BOTH
async def test_hang_until_the_deadline(streamed: bool) -> None:
    outcome = await fault(hang(), streamed=streamed, deadline_s=0.1, idle_timeout_s=0.02)
    check(outcome, DeadlineExceeded, charged=True)


@BOTH
@pytest.mark.parametrize("verb", [reset_before_headers(), close_before_headers()])
async def test_lost_before_headers(verb: Verb, streamed: bool) -> None:
    check(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@pytest.mark.parametrize("content_type", [SSE_TYPE, "application/json"])
async def test_reset_after_headers(content_type: str) -> None:
    verb = reset_after(content_type=content_type)
    outcome = await fault(verb, streamed=content_type == SSE_TYPE)
    check(outcome, BackendFailed, charged=False)


async def test_silence_after_headers() -> None:
    async def only_head(peer: Peer) -> None:
        await peer.send_head()
        await peer.until_left()

    # A full queue looks like this: the deadline is the bound, not the idle time.
    outcome = await fault(only_head, streamed=True, deadline_s=0.1, idle_timeout_s=0.02)
    check(outcome, DeadlineExceeded, charged=False)


@pytest.mark.parametrize("pieces", [1, 2, 3, 20])
async def test_reset_after_pieces(pieces: int) -> None:
    outcome = await fault(reset_after(pieces), streamed=True)
    text = "".join(f"{number} " for number in range(pieces))
    check(outcome, BackendFailed, charged=True, text=text)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("pieces", [1, 5])
async def test_end_without_done(pieces: int, finished: bool) -> None:
    outcome = await fault(end_after(pieces, finished=finished), streamed=True)
    text = "".join(f"{number} " for number in range(pieces))
    check(outcome, BackendFailed, charged=True, text=text)


async def test_done_without_finish() -> None:
    outcome = await fault(stream([sse(chunk("a")), DONE]), streamed=True)
    check(outcome, BackendFailed, charged=True, text="a")


async def test_done_at_once() -> None:
    check(await fault(stream([DONE]), streamed=True), BackendFailed, charged=False)


async def test_end_at_once() -> None:
    check(await fault(stream([]), streamed=True), BackendFailed, charged=False)


async def test_body_cut_short() -> None:
    async def short(peer: Peer) -> None:
        await peer.send_head(content_type="application/json", length=1000)
        await peer.send(b'{"choices":')
        peer.close()

    check(await fault(short), BackendFailed, charged=False)


async def test_drip_in_a_stream() -> None:
    verb = drip(sse(chunk("late")), before=sse(chunk("a")), pause_s=0.01)
    outcome = await fault(verb, streamed=True, idle_timeout_s=0.1)
    check(outcome, DeadlineExceeded, charged=True, text="a")


async def test_drip_before_the_first_event() -> None:
    verb = drip(sse(chunk("late")), pause_s=0.01)
    outcome = await fault(verb, streamed=True, deadline_s=0.15)
    check(outcome, DeadlineExceeded, charged=False)


async def test_drip_of_json() -> None:
    body = json.dumps(completion()).encode()
    verb = drip(body, pause_s=0.01, content_type="application/json")
    check(await fault(verb, deadline_s=0.15), DeadlineExceeded, charged=False)


async def test_json_that_stands_still() -> None:
    async def half(peer: Peer) -> None:
        await peer.send_head(content_type="application/json", length=1000)
        await peer.send(b'{"choices":')
        await peer.until_left()

    check(await fault(half, idle_timeout_s=0.05), DeadlineExceeded, charged=False)


async def test_a_slow_but_steady_stream_is_not_idle() -> None:
    records = chat_records(["a", "b", "c", "d"])
    outcome = await fault(stream(records, pause_s=0.06), streamed=True, idle_timeout_s=0.3)
    outcome.check_complete()


async def test_comments_are_a_sign_of_life() -> None:
    records = [sse(chunk("a")), *[b": still here\n\n"] * 8, *chat_records(["b"])[1:]]
    outcome = await fault(stream(records, pause_s=0.05), streamed=True, idle_timeout_s=0.35)
    outcome.check_complete()


async def test_a_slow_reader_is_not_a_silent_backend() -> None:
    first, *rest = [sse(chunk("a")), *chat_records(["b"])[1:]]

    async def pause(peer: Peer) -> None:
        await peer.send_head()
        await peer.send_chunk(first)
        await asyncio.sleep(1.3)
        await peer.send_chunk(b"".join(rest))
        await peer.end_chunks()

    async with Upstream(pause) as upstream, routed(upstream.url, idle_timeout_s=0.4) as backend:
        deadline = asyncio.get_running_loop().time() + 10
        async with backend.open(make_call(streamed=True), deadline=deadline) as opened_answer:
            count = 0
            async for batch in opened_answer.batches:
                count += len(batch)
                # The reader is away for most of the pause: only the rest of it is silence.
                await asyncio.sleep(1.0 if count == 2 else 0)
        assert count == 5


async def test_the_deadline_holds_for_the_whole_stream() -> None:
    verb = stream([sse(chunk("a"))] * 100, pause_s=0.02)
    outcome = await fault(verb, streamed=True, deadline_s=0.1)
    assert type(outcome.error) is DeadlineExceeded
    assert outcome.error.charged
    assert outcome.text()


# U8, U9: malformed and odd streams.

GOOD = sse(chunk("a"))
MALFORMED = {
    "bad UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
    "bad UTF-8 in an unknown field": b'data: {"x":"\xff"}\n\n',
    "bad UTF-8 in a comment": b": \xc3\x28\n\n",
    "surrogate": b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}\n\n',
    "not JSON": b"data: hello\n\n",
    "half JSON": b'data: {"choices":[\n\n',
    "an array": b"data: []\n\n",
    "no colon": b"data\n\n",
    "empty data": b"data:\n\n",
    "choices is text": b'data: {"choices":"x"}\n\n',
    "content is a number": b'data: {"choices":[{"index":0,"delta":{"content":7}}]}\n\n',
    "index is text": b'data: {"choices":[{"index":"0","delta":{}}]}\n\n',
    "a choice that was not asked for": sse(chunk("b", index=1)),
    "a negative choice": sse(chunk("b", index=-1)),
    "a negative tool call": sse(chunk(delta={"tool_calls": [{"index": -1}]})),
    "deep nesting": b"data: " + b'{"usage":' + b"[" * 50_000 + b"\n\n",
    "an error record": sse({"error": {"message": f"broke at {KEY}", "code": 500}}),
    "an error record of another shape": sse({"error": "broke"}),
    "text after the end": sse(chunk(finish="stop")) + sse(chunk("more")),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_stream(case: str) -> None:
    data = GOOD + MALFORMED[case] + b"".join(chat_records())
    outcome = await fault(cut(data), streamed=True)
    check(outcome, BackendFailed, charged=True, text="a")
    outcome = await fault(cut(data, len(GOOD)), streamed=True)
    check(outcome, BackendFailed, charged=True, text="a")


@pytest.mark.parametrize(
    "case", [case for case in MALFORMED if case not in ("text after the end",)]
)
async def test_malformed_from_the_beginning(case: str) -> None:
    outcome = await fault(cut(MALFORMED[case] + b"".join(chat_records())), streamed=True)
    check(outcome, BackendFailed, charged=False)


ODD = (
    b"\xef\xbb\xbf: hello\r\n\r\n"
    b"event: message\rid: 1\x00\rdata: "
    + json.dumps(chunk(delta={"role": "assistant"})).encode()
    + b"\r\r"
    + b'data: {"choices": [{"index": 0,\ndata:  "delta": {"content": "z\xc4\x99\xf0\x9f\xa6\x8a"}'
    + b"\r\ndata\ndata: }]}\r\n\r\n"
    + b"retry: 10\n\n"
    + b"data:"
    + json.dumps(chunk(" b")).encode()
    + b"\n\n\n\n"
    + sse(chunk(finish="stop"))
    + b": ping\n"
    + sse(usage_chunk())
    + DONE
    + b"data: after the end, anything\n\n"
)


async def test_odd_but_legal_stream_cut_at_every_byte() -> None:
    """The cuts of one script after the other, over one upstream."""
    cuts = [cut(ODD, position) for position in range(len(ODD))]
    every_byte = cut(ODD, *range(1, len(ODD)))
    async with Upstream(*cuts, every_byte) as upstream, routed(upstream.url) as backend:
        for _ in range(len(cuts) + 1):
            outcome = await make(backend, make_call(streamed=True))
            outcome.check_complete()
            assert outcome.text() == "zę🦊 b"
            assert outcome.usage == Usage(7, 3)


@pytest.mark.parametrize(
    ("code", "error"), [(400, ProviderRejected), (429, RateLimited), (500, BackendFailed)]
)
async def test_error_record_where_the_answer_should_begin(
    code: int, error: type[TollkeeperError]
) -> None:
    record = {"error": {"message": f"too long, {KEY}", "code": code}}
    check(await fault(stream([sse(record), DONE]), streamed=True), error, charged=False)
    check(await fault(answer(record)), error, charged=False)


# U10 to U15: what is said.


@pytest.mark.parametrize(
    ("verb", "streamed"),
    [
        (answer(b"<html>busy</html>", content_type="text/html"), False),
        (answer(b"<html>busy</html>", content_type="text/html"), True),
        (answer(), True),
        (stream(), False),
        (answer(content_type=None), False),
        (answer(content_type="application/jsonp"), False),
    ],
)
async def test_wrong_content_type(verb: Verb, streamed: bool) -> None:
    check(await fault(verb, streamed=streamed), BackendFailed, charged=False)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x"]
)
async def test_right_content_type_in_other_words(content_type: str) -> None:
    (await fault(answer(content_type=content_type))).check_complete()


@BOTH
async def test_no_usage(streamed: bool) -> None:
    verb = stream(chat_records(usage=None)) if streamed else answer(completion(usage=None))
    outcome = await fault(verb, streamed=streamed)
    outcome.check_complete()
    assert outcome.reports == []


ABSURD = {
    "negative": b'{"prompt_tokens":-1,"completion_tokens":3}',
    "huge": b'{"prompt_tokens":7,"completion_tokens":9223372036854775808}',
    "beyond any integer": b'{"prompt_tokens":7,"completion_tokens":1' + b"0" * 400 + b"}",
    "fraction": b'{"prompt_tokens":7,"completion_tokens":1.5}',
    "text": b'{"prompt_tokens":"7","completion_tokens":3}',
    "NaN": b'{"prompt_tokens":NaN,"completion_tokens":3}',
    "infinity": b'{"prompt_tokens":7,"completion_tokens":-Infinity}',
    "truth": b'{"prompt_tokens":true,"completion_tokens":3}',
    "missing": b'{"prompt_tokens":7}',
    "sum": b'{"prompt_tokens":7,"completion_tokens":3,"total_tokens":11}',
    "cached": b'{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}',
    "a list": b"[7,3]",
    "a word": b'"many"',
    "empty": b"{}",
}


@pytest.mark.parametrize("case", ABSURD)
@BOTH
async def test_absurd_usage(case: str, streamed: bool) -> None:
    placeholder = b'"absurd"'
    if streamed:
        data = b"".join(chat_records(usage="absurd")).replace(placeholder, ABSURD[case])
        verb = cut(data)
    else:
        body = json.dumps(completion(usage="absurd")).encode()
        verb = answer(body.replace(placeholder, ABSURD[case]))
    outcome = await fault(verb, streamed=streamed)
    outcome.check_complete()
    assert outcome.text() == "Hello"
    assert outcome.usage is None


async def test_usage_twice_and_after_done() -> None:
    *records, usage, done = chat_records()
    other = sse(usage_chunk({**USAGE, "completion_tokens": 4, "total_tokens": 11}))
    outcome = await fault(stream([*records, usage, other, done, usage]), streamed=True)
    outcome.check_complete()
    assert [report.usage for report in outcome.reports] == [Usage(7, 3), Usage(7, 4)]


# U16 to U18: too much.


def peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("before", [b"", sse(chunk("a"))])
async def test_one_line_of_64_mib(before: bytes) -> None:
    peak = peak_memory_bytes()
    outcome = await fault(fat_line(64 << 20, before=before), streamed=True)
    text = "a" if before else ""
    check(outcome, BackendFailed, charged=bool(text), text=text)
    assert peak_memory_bytes() - peak < 32 << 20


async def test_a_json_body_above_the_bound() -> None:
    peak = peak_memory_bytes()
    verb = fat_line(64 << 20, content_type="application/json")
    check(await fault(verb, body_bytes_max=1 << 20), BackendFailed, charged=False)
    assert peak_memory_bytes() - peak < 32 << 20


async def test_a_head_above_the_bound() -> None:
    async def headers_for_ever(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n")
        while not peer.left:
            await peer.send(b"x-filler: " + b"x" * 1000 + b"\r\n")
            await asyncio.sleep(0)

    check(await fault(headers_for_ever), BackendFailed, charged=True)


async def test_endless_stream_is_cut() -> None:
    async with Upstream(endless()) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, output_tokens_max=50))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert 50 <= len(outcome.deltas) <= 50 * 2 + 64
        await until(lambda: upstream.open_connections == 0, within_s=1)


async def test_endless_nothing_is_cut() -> None:
    empty = sse(chunk(delta={}))
    outcome = await fault(endless(empty), streamed=True)
    check(outcome, BackendFailed, charged=False)


@BOTH
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "identity, gzip"])
async def test_compressed_answer(encoding: str, streamed: bool) -> None:
    content_type = SSE_TYPE if streamed else "application/json"
    verb = answer(b"x", content_type=content_type, headers=[("content-encoding", encoding)])
    check(await fault(verb, streamed=streamed), BackendFailed, charged=False)


@BOTH
async def test_gzip_bomb(streamed: bool) -> None:
    verb = gzip_bomb(64 << 20, content_type=SSE_TYPE if streamed else "application/json")
    peak = peak_memory_bytes()
    check(await fault(verb, streamed=streamed), BackendFailed, charged=False)
    assert peak_memory_bytes() - peak < 16 << 20


# U19 to U22: refusals.


@BOTH
@pytest.mark.parametrize("status", [400, 422])
async def test_provider_rejection(status: int, streamed: bool) -> None:
    outcome = await fault(refuse(status, "max_tokens is too large"), streamed=streamed)
    check(outcome, ProviderRejected, charged=False)
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
    check(outcome, ProviderRejected, charged=False)
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
    check(outcome, ProviderRejected, charged=False)
    assert outcome.error is not None
    assert outcome.error.message == "The backend refused the request."


async def test_provider_rejection_with_an_endless_body() -> None:
    async def pour(peer: Peer) -> None:
        await peer.send_head(400, "application/json")
        while not peer.left:
            await peer.send_chunk(b"x" * 65536)

    check(await fault(pour), ProviderRejected, charged=False)


@BOTH
@pytest.mark.parametrize("status", [201, 204, 401, 403, 404, 408, 418, 500, 502, 503, 504])
async def test_other_statuses(status: int, streamed: bool) -> None:
    verb = refuse(status, "secret detail") if status != 204 else redirect("", status=204)
    outcome = await fault(verb, streamed=streamed)
    check(outcome, BackendFailed, charged=False)
    assert outcome.error is not None
    assert "secret" not in outcome.error.message


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
    check(outcome, RateLimited, charged=False)
    assert outcome.error is not None
    assert outcome.error.retry_after_s == seconds


@BOTH
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int, streamed: bool) -> None:
    async with Upstream(chat()) as target:
        verb = redirect(target.url + "/chat/completions", status=status)
        check(await fault(verb, streamed=streamed), BackendFailed, charged=False)
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

    check(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
async def test_broken_chunk(streamed: bool) -> None:
    async def verb(peer: Peer) -> None:
        await peer.send_head(content_type=SSE_TYPE if streamed else "application/json")
        await peer.send(b"ZZ\r\nhello\r\n")
        await peer.until_left()

    check(await fault(verb, streamed=streamed), BackendFailed, charged=False)


# U23: choices.


def incomplete(*choices: dict[str, Any]) -> Verb:
    return answer({**completion(), "choices": list(choices)})


def choice(index: int, finish: str | None = "stop") -> dict[str, Any]:
    return {"index": index, "message": {"content": f"text {index}"}, "finish_reason": finish}


@pytest.mark.parametrize(
    "verb",
    [
        incomplete(choice(0)),
        incomplete(choice(0), choice(0)),
        incomplete(choice(0), choice(2)),
        incomplete(choice(0), choice(1, None)),
    ],
)
async def test_a_missing_choice_is_never_silent(verb: Verb) -> None:
    async with Upstream(verb) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(choices=2))
        # What was made, and its usage, are known: the failure comes after them.
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert outcome.text(0) == "text 0"
        assert outcome.usage == Usage(7, 3)


async def test_a_missing_choice_of_many_in_a_stream() -> None:
    records = [sse(chunk(f"{index}", index=index)) for index in range(128)]
    ends = [sse(chunk(index=index, finish="stop")) for index in range(128) if index != 77]
    verb = stream([*records, *ends, sse(usage_chunk()), DONE])
    async with Upstream(verb) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, choices=128))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert all(outcome.text(index) == f"{index}" for index in range(128))


@pytest.mark.parametrize("choices", [[], None, "x", [{"index": 0}], [7]])
async def test_no_choice_at_all(choices: Any) -> None:
    outcome = await fault(answer({**completion(), "choices": choices}))
    check(outcome, BackendFailed, charged=False)
