"""Tests that the request parser raises only declared errors, and gives the same result for every cut."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.http.raw_corpus import CORPUS
from tests.support.proof import Proof
from tests.support.request_receiver import content_of, parse_requests
from tests.support.tables import each
from tollkeeper.http.request_rules import path_of_request_line

_HEADER_BYTES_MAX = 1 << 20
_PIECES = [b"\r", b"\n", b"\r\n", b" ", b":", b"0", b"\x00", b"\xff", b"Content-Length: 1\r\n"]
_PIECES += [
    b"Transfer-Encoding: chunked\r\n",
    b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
    b"GET / ",
]


def _parsed(*segments: bytes) -> tuple[list[object], bool]:
    """Returns the parsed requests, and whether the rest was refused."""
    exchanges, refused = parse_requests(segments, _HEADER_BYTES_MAX)
    return [content_of(exchange) for exchange in exchanges], refused


@given(data=st.binary(max_size=200), at=st.integers(0, 200))
def test_arbitrary_bytes(data: bytes, at: int) -> None:
    assert _parsed(data) == _parsed(data[:at], data[at:])


def _mutated(seed: int) -> bytes:
    chance = random.Random(seed)
    raw = bytearray(b"".join(chance.choice(CORPUS).raw[:2000] for _ in range(2)))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(raw) + 1)
        match chance.randrange(3):
            case 0:
                raw[at:at] = chance.choice(_PIECES)
            case 1:
                del raw[at : at + chance.randrange(1, 8)]
            case _:
                raw[at : at + 1] = bytes([chance.randrange(256)])
    return bytes(raw)


def test_mutations_of_the_corpus(proof: Proof) -> None:
    """Checks that cuts do not change the parsed requests: a cut never turns a body into a request."""
    mutations = proof.size(quick=500, long=200_000)
    for seed in range(mutations):
        raw = _mutated(seed)
        whole = _parsed(raw)
        at = random.Random(seed).randrange(len(raw) + 1)
        assert _parsed(raw[:at], raw[at:]) == whole, seed
        assert _parsed(*(bytes([byte]) for byte in raw)) == whole, seed
    proof.count("mutated requests", mutations)


@each(
    ("data", "path"),
    [
        (b"POST /v1/x?y HTTP/1.1\r\nHost: a\r\n\r\n", b"/v1/x"),
        (b"\r\nGET http://host/v1/x HTTP/1.1\r\n", b"/v1/x"),
        (b"GET /v1", b"/v1"),
        (b"GET /v1#x HTTP/1.1\r\n", b""),
        (b"GET", b""),
        (b"\x16\x03\x01", b""),
    ],
)
def test_the_path_of_a_request_that_is_refused_unparsed(data: bytes, path: bytes) -> None:
    assert path_of_request_line(data) == path
