"""Returns the first inputs for fuzzing: cases of other tests, and inputs that fuzzing found before."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.http.raw_corpus import CORPUS
from tests.providers.transport.test_sse import CASES
from tollkeeper.core.access import KeyKind
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.tenants.keys import mint_key

_FOUND = Path(__file__).parent / "found"
_RECORDED = Path(__file__).parents[1] / "journeys" / "exchanges" / "recorded"
# The first bytes of an input are the lengths of the pieces into which a target cuts the rest.
_NO_CUT = bytes([255] * 8)
_CUTS = bytes([1, 2, 3, 5, 8, 13, 21, 34])
_ANSWERS = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: x\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 1\r\n\r\nx",
    b"HTTP/1.0 200 OK\r\n\r\nold",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nother",
)
# Each frame consists of the headers' length, headers of several types, and a payload.
_FRAMES = (
    b"\x10\x0b:event-type\x07\x00\x01x{}",
    b"\x10\x0b:event-type\x07\x00\x01x",
    b"\x05\x01a\x00\x01b\x01{}",
    b"\x0b\x01n\x08\x00\x00\x00\x00\x00\x00\x00\x01",
    b"\x00{}",
)
_CONTENT_TYPES = (
    *(b"application/json", b"application/json; charset=utf-8", b"APPLICATION/JSON ; charset=UTF8"),
    *(b'application/json;charset="utf-8"', b"text/plain", b"application/json;;", b"; ; ;"),
)
_QUERIES = (
    b"start_time=1800000000&end_time=1800000001&limit=7&bucket_width=1d",
    b"start_time=1&project_ids=a,b&project_ids[]=c&group_by=line_item&page=x",
    b"start_time=%31&start_time=1&api_key_ids=%ff",
)
_BODIES = (
    b'{"model":"m","messages":[{"role":"user","content":"a, [\\"{"}],"stop":["x"]}',
    b'[[],{},[[[1,2]]],{"a":{"b":[]}}]',
    b"[" * 70 + b"]" * 70,
    b'{"a":"\\\\","b":"\\\\\\""}',
)
_KEY = mint_key(KeyKind.PROJECT).value.encode()
_INPUTS = {
    "content_type": _CONTENT_TYPES,
    "key": (b"Bearer " + _KEY, b"\n" + _KEY, b"Bearer " + _KEY + b"\n" + _KEY),
    "query": _QUERIES,
    "json_bounds": _BODIES,
}
# Inputs of the targets that cut their input into pieces.
_CUT_INPUTS = {
    "event_stream": tuple(stream for stream, _ in CASES.values()),
    "aws_event_stream": _FRAMES,
    "http_answer": _ANSWERS,
    "request": tuple(case.raw for case in CORPUS if len(case.raw) < 2000),
}


def seeds_of(target: str) -> Iterator[bytes]:
    yield from _made(target)
    for file in sorted((_FOUND / target).glob("*")):
        yield file.read_bytes()


def _made(target: str) -> Iterator[bytes]:
    match target:
        case "cursor":
            yield from (_cursor(UUID(int=2)), b"AAAA", "é=".encode())
        case "request_body":
            yield from _BODIES
            yield from (_encoded(exchange["request"]) for exchange in _exchanges())
        case "whole_answer":
            yield from (_encoded(found) for exchange in _exchanges() for found in _bodies(exchange))
        case "streamed_answer":
            yield from filter(None, map(_stream, _exchanges()))
        case _ if target in _CUT_INPUTS:
            yield from _cut(iter(_CUT_INPUTS[target]))
        case _:
            yield from _INPUTS[target]


def _cut(inputs: Iterator[bytes]) -> Iterator[bytes]:
    for data in inputs:
        yield _NO_CUT + data
        yield _CUTS + data


def _cursor(organization: UUID) -> bytes:
    """Returns a cursor that is signed for this organization, which is not that of the target."""
    signed = Vault(b"0" * 32).sign(bytes(16), "cost-cursor", organization.bytes, b"[]")
    return base64.urlsafe_b64encode(signed).rstrip(b"=")


def _exchanges() -> Iterator[dict[str, Any]]:
    for file in sorted(_RECORDED.glob("*.json")):
        yield json.loads(file.read_text())


def _bodies(exchange: dict[str, Any]) -> list[object]:
    answer = exchange["answer"]
    return [answer["body"]] if "body" in answer else []


def _stream(exchange: dict[str, Any]) -> bytes:
    lines = exchange["answer"].get("lines", [])
    return b"\n".join(line.encode() if isinstance(line, str) else _encoded(line) for line in lines)


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()
