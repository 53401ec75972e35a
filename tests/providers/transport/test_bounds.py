"""Tests the limits for lines, bodies, headers, pieces and compressed answers of a model server."""

import asyncio
import json
import resource
from dataclasses import replace

import pytest

from tests.providers.faults import BOTH, check_failure, fault
from tests.support.backend_calls import MODEL, make, make_call, routed, until
from tests.support.tables import each
from tests.support.upstream import (
    SSE_TYPE,
    Peer,
    Upstream,
    answer,
    chat_records,
    chunk,
    endless,
    fat_line,
    gzip_bomb,
    sse,
    stream,
)
from tests.support.upstream_wire import completion
from tollkeeper.core.errors import BackendFailed
from tollkeeper.providers.config import WireProtocol

# Answers that are too large, too long or compressed (U16 to U18 in docs/conformance.md).


def peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@each("before", [b"", sse(chunk("a"))])
async def test_one_line_of_64_mib(before: bytes) -> None:
    peak = peak_memory_bytes()
    outcome = await fault(fat_line(64 << 20, before=before), streamed=True)
    text = "a" if before else ""
    check_failure(outcome, BackendFailed, charged=True, text=text)
    assert peak_memory_bytes() - peak < 32 << 20


@each(
    ("modalities", "protocol", "size", "fits"),
    [
        (("text",), WireProtocol.CHAT, 1, False),
        (("text", "image"), WireProtocol.CHAT, 1, True),
        (("text", "image"), WireProtocol.CHAT, 16, False),
        (("text",), WireProtocol.RESPONSES, 1, True),
    ],
)
async def test_the_largest_record_depends_on_the_model_of_the_call(
    modalities: tuple[str, ...], protocol: WireProtocol, size: int, fits: bool
) -> None:
    """All calls use the same backend, also if a reload of the catalogue changes its models."""
    call = make_call(streamed=True, catalog_model=replace(MODEL, output_modalities=modalities))
    verb = fat_line(size << 20, before=b": a comment\n")
    async with Upstream(verb) as upstream, routed(upstream.url, protocol=protocol) as backend:
        outcome = await make(backend, call)
    assert ("a record is too large" in str(outcome.error)) is not fits


async def test_a_json_body_above_the_bound() -> None:
    peak = peak_memory_bytes()
    verb = fat_line(64 << 20, content_type="application/json")
    check_failure(await fault(verb, body_bytes_max=1 << 20), BackendFailed, charged=True)
    assert peak_memory_bytes() - peak < 32 << 20


async def test_a_head_above_the_bound() -> None:
    async def headers_for_ever(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n")
        while not peer.left:
            await peer.send(b"x-filler: " + b"x" * 1000 + b"\r\n")
            await asyncio.sleep(0)

    check_failure(await fault(headers_for_ever), BackendFailed, charged=True)


@BOTH
@pytest.mark.parametrize("part", ["trailers", "extensions"])
async def test_framing_above_the_bound(part: str, streamed: bool) -> None:
    """In an earlier version, 212 MB of trailers took 518 MB of memory."""
    peak = peak_memory_bytes()
    content_type = SSE_TYPE if streamed else "application/json"

    async def for_ever(peer: Peer) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
        await peer.send((head % content_type).encode())
        await peer.send(b"0\r\n" if part == "trailers" else b"1")
        while not peer.left:
            filler = b"x" * 100_000
            await peer.send(b"x: " + filler + b"\r\n" if part == "trailers" else b";" + filler)

    check_failure(await fault(for_ever, streamed=streamed), BackendFailed, charged=True)
    assert peak_memory_bytes() - peak < 32 << 20


async def test_trailers_within_the_bound_are_no_header() -> None:
    """The gateway ignores trailers, and the connection can be used again."""
    body = json.dumps(completion()).encode()

    async def with_trailers(peer: Peer) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
        )
        await peer.send(b"expires: never\r\nx: " + b"x" * 20_000 + b"\r\n\r\n")

    async with Upstream(with_trailers) as upstream, routed(upstream.url) as backend:
        for _ in range(2):
            (await make(backend, make_call())).check_complete()
        assert upstream.connections == 1


async def test_endless_stream_is_cut() -> None:
    async with Upstream(endless()) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, output_tokens_max=50))
        assert type(outcome.error) is BackendFailed
        assert outcome.error.charged
        assert 50 <= len(outcome.deltas) <= 50 * 2 + 64
        await until(lambda: upstream.open_connections == 0)


async def test_progress_while_the_prompt_is_read() -> None:
    """The embedded engine reports progress in empty pieces: many more than the answer may have."""
    progress = sse(chunk(delta={"role": "assistant", "content": None}, prompt_progress={}))
    verb = stream([progress] * 600 + chat_records(["a"])[1:])
    async with Upstream(verb) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, output_tokens_max=1))
        outcome.check_complete()


async def test_endless_nothing_is_cut() -> None:
    empty = sse(chunk(delta={}))
    small = replace(MODEL, context_length=1000)
    async with Upstream(endless(empty)) as upstream, routed(upstream.url) as backend:
        outcome = await make(backend, make_call(streamed=True, catalog_model=small))
        check_failure(outcome, BackendFailed, charged=True)


@BOTH
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "identity, gzip"])
async def test_compressed_answer(encoding: str, streamed: bool) -> None:
    content_type = SSE_TYPE if streamed else "application/json"
    verb = answer(b"x", content_type=content_type, headers=[("content-encoding", encoding)])
    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)


@BOTH
async def test_gzip_bomb(streamed: bool) -> None:
    verb = gzip_bomb(64 << 20, content_type=SSE_TYPE if streamed else "application/json")
    peak = peak_memory_bytes()
    check_failure(await fault(verb, streamed=streamed), BackendFailed, charged=True)
    assert peak_memory_bytes() - peak < 16 << 20
