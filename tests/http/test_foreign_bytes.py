"""Tests the functions that read clients' bytes with arbitrary input: they raise only declared errors, and
their results equal those of another implementation."""

import json
import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.access import KeyKind
from tollkeeper.core.errors import InvalidRequest, Unauthenticated
from tollkeeper.faces import strict_json
from tollkeeper.faces.request import check_content_type, decode_query, presented_key
from tollkeeper.faces.wire.organization import CostQuery
from tollkeeper.http.envelope import UnsupportedMediaType
from tollkeeper.http.exchange import HeaderIndex
from tollkeeper.tenants.keys import key_digest, key_kind, mint_key

_FREE = msgspec.json.Decoder(dict[str, Any])
# The rule as a regular expression. It may take exponential time, so inputs are short.
_JSON_TYPE = re.compile(
    rb"[ \t]*application/json[ \t]*((;[ \t]*)*"
    rb'(;[ \t]*charset[ \t]*=[ \t]*(utf-?8|"utf-?8")[ \t]*)?(;[ \t]*)*)',
    re.IGNORECASE,
)
_TYPE_PARTS = st.sampled_from(
    [b"application/json", b"charset", b"=", b"utf-8", b"UTF8", b'"', b";", b" ", b"\t", b"x", b","]
)


@given(parts=st.lists(_TYPE_PARTS, max_size=8))
def test_content_type(parts: list[bytes]) -> None:
    value = b"".join(parts)
    if _JSON_TYPE.fullmatch(value):
        check_content_type({b"content-type": (value,)})
    else:
        with pytest.raises(UnsupportedMediaType):
            check_content_type({b"content-type": (value,)})


_JSON_PARTS = st.sampled_from(
    [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\\",
        b"a",
        b"1",
        b"null",
        b" ",
        b"\\u00e9",
        b"\xff",
    ]
)
_BODIES = st.binary(max_size=100) | st.lists(_JSON_PARTS, max_size=30).map(b"".join)


@given(body=_BODIES)
def test_json(body: bytes) -> None:
    """Tests that Python's decoder returns the same object for every body that the gateway's decoder accepts."""
    try:
        expected = json.loads(body, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        expected = None
    try:
        decoded = strict_json.decode(body, _FREE, 1000)
    except InvalidRequest:
        return
    assert decoded == expected


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "the decoder refuses duplicates"
    return dict(pairs)


@given(body=_BODIES, elements_max=st.integers(0, 20))
def test_bounds_of_arbitrary_bytes(body: bytes, elements_max: int) -> None:
    """Tests that no other content of a body makes the check accept too many elements."""
    try:
        strict_json.check_bounds(body, elements_max)
    except InvalidRequest:
        return
    outside = re.sub(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', b"", body, flags=re.DOTALL)
    if b"\\" not in outside:
        assert sum(map(outside.count, (b",", b"{", b"["))) <= elements_max


_HEADER_VALUES = st.binary(max_size=60) | st.binary(max_size=40).map(lambda end: b"Bearer " + end)


@given(values=st.lists(_HEADER_VALUES, max_size=2), own=st.lists(_HEADER_VALUES, max_size=2))
def test_presented_key(values: list[bytes], own: list[bytes]) -> None:
    headers: HeaderIndex = {}
    if values:
        headers[b"authorization"] = tuple(values)
    if own:
        headers[b"x-key"] = tuple(own)
    try:
        key = presented_key(headers, KeyKind.PROJECT, b"x-key")
    except Unauthenticated:
        return
    assert key.encode("latin-1") in b"\n".join([*values, *own])
    assert key_kind(key) is None
    assert len(key_digest(key)) == 32


@given(at=st.integers(0, 50), character=st.characters(codec="latin-1"))
def test_key_with_another_character(at: int, character: str) -> None:
    value = mint_key(KeyKind.PROJECT).value
    at %= len(value)
    changed = value[:at] + character + value[at + 1 :]
    assert (key_kind(changed) is KeyKind.PROJECT) == (changed == value)


@given(query=st.binary(max_size=80))
def test_query(query: bytes) -> None:
    """Tests that a query is decoded or rejected, without any other error."""
    with suppress(InvalidRequest):
        assert decode_query(b"start_time=1&" + query, CostQuery).start_time == 1
