"""Tests that the event stream parser returns the same payloads for every cut, and tests its limits."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.providers.transport.sse import EventStreamParser, MalformedEventStream


def parse(stream: bytes, *positions: int, record_bytes_max: int = 1 << 20) -> list[bytes]:
    """Returns the payloads of a stream that is cut at these positions."""
    parser = EventStreamParser(record_bytes_max)
    edges = [0, *positions, len(stream)]
    return [
        payload
        for start, end in itertools.pairwise(edges)
        for payload in parser.feed(stream[start:end])
    ]


CASES = {
    "one": (b"data: a\n\n", [b"a"]),
    "two in a chunk": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "only one mark is skipped": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"b"]),
    "part of a mark": (b"\xef\xbb\n\n", None),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\rdata: c\r\r\n", [b"a", b"b", b"c"]),
    "LF CR is two ends": (b"data: a\n\rdata: b\r\n\n", [b"a", b"b"]),
    "comment": (b": hello\n\n:\n\ndata: a\n\n", [b"a"]),
    "comment inside": (b"data: a\n: hello\ndata: b\n\n", [b"a\nb"]),
    "several lines": (b"data: a\ndata:\ndata: b\n\n", [b"a\n\nb"]),
    "no space": (b"data:a\n\n", [b"a"]),
    "one space is taken": (b"data:  a \n\n", [b" a "]),
    "tab is kept": (b"data:\ta\n\n", [b"\ta"]),
    "no colon": (b"data\n\n", [b""]),
    "no colon twice": (b"data\ndata\n\n", [b"\n"]),
    "empty": (b"data:\n\ndata: \n\n", [b"", b""]),
    "other fields": (b"event: x\nid: 1\nretry: 5\ndata: a\nfoo: bar\n\n", [b"a"]),
    "no data": (b"event: x\nid: 1\n\ndata: a\n\n", [b"a"]),
    "NUL in id": (b"id: 1\x00\ndata: a\n\n", [b"a"]),
    "field name in other case": (b"Data: a\n\ndata : b\n\n data: c\n\n", []),
    "blank lines": (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [b"a", b"b"]),
    "cut off": (b"data: a\n\ndata: b\n", [b"a"]),
    "unicode": ("data: zażółć 🦊\n\n".encode(), ["zażółć 🦊".encode()]),
    "nothing": (b"", []),
}


@each("case", CASES)
def test_format(case: str) -> None:
    stream, payloads = CASES[case]
    if payloads is None:
        with pytest.raises(MalformedEventStream):
            parse(stream)
    else:
        assert parse(stream) == payloads


@each("case", [case for case, (_, payloads) in CASES.items() if payloads])
def test_every_cut_gives_the_same(case: str) -> None:
    stream, payloads = CASES[case]
    assert parse(stream, *range(len(stream))) == payloads
    for position in range(len(stream)):
        assert parse(stream, position) == payloads
        assert parse(stream, position, min(position + 1, len(stream))) == payloads


@each("case", [case for case, (_, payloads) in CASES.items() if payloads and "mark" not in case])
def test_every_cut_after_a_plain_chunk_gives_the_same(case: str) -> None:
    stream, payloads = CASES[case]
    plain_chunk = b"data: z\n\n"
    for position in range(len(stream)):
        cuts = (len(plain_chunk), len(plain_chunk) + position)
        assert parse(plain_chunk + stream, *cuts) == [b"z", *(payloads or ())]


lines = st.one_of(
    st.sampled_from(["", "data", "data:", "data: ", ":", "event: x", "id: \x00", "\ufeffdata: x"]),
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8")).map("data: {}".format),
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8")),
)


def plain(stream: str) -> list[bytes]:
    """Returns the payloads of a whole stream, by a simple implementation of the standard's rules."""
    stream = stream.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    payloads: list[bytes] = []
    data = ""
    for line in stream.split("\n")[:-1]:
        if not line:
            if data:
                payloads.append(data[:-1].encode())
            data = ""
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data += value.removeprefix(" ") + "\n"
    return payloads


@given(
    st.lists(st.tuples(lines, st.sampled_from(["\n", "\r", "\r\n"]))),
    st.booleans(),
    st.lists(st.integers(0, 400)),
)
def test_any_stream_in_any_cut(
    parts: list[tuple[str, str]], mark: bool, positions: list[int]
) -> None:
    text = ("\ufeff" if mark else "") + "".join(line + end for line, end in parts)
    stream = text.encode()
    cuts = sorted(min(position, len(stream)) for position in positions)
    assert parse(stream, *cuts) == plain(text)


def test_bad_utf8_fails_at_its_record() -> None:
    stream = b"data: a\n\ndata: \xff\n\ndata: b\n\n"
    for position in range(len(stream)):
        parser = EventStreamParser(1 << 20)
        seen = []
        with pytest.raises(MalformedEventStream) as raised:
            for piece in (stream[:position], stream[position:]):
                seen += parser.feed(piece)
        assert [*seen, *raised.value.payloads] == [b"a"]


@each("size", [63, 64])
def test_a_record_of_the_largest_size_passes_in_every_cut(size: int) -> None:
    stream = b"data: a\n\n" + b"data: ".ljust(size, b"x") + b"\n\n"
    for position in range(len(stream)):
        assert len(parse(stream, position, record_bytes_max=64)) == 2


def test_a_larger_record_fails_in_every_cut() -> None:
    stream = b"data: a\n\n" + b"data: ".ljust(65, b"x") + b"\n\n"
    for position in range(len(stream)):
        with pytest.raises(MalformedEventStream):
            parse(stream, position, record_bytes_max=64)


def test_a_line_without_end_is_not_collected() -> None:
    parser = EventStreamParser(record_bytes_max=1 << 10)
    with pytest.raises(MalformedEventStream):
        for _ in range(100):
            parser.feed(b"x" * 100)


def test_a_large_record_in_single_bytes_is_read_in_linear_time() -> None:
    payload = b"x" * 200_000
    stream = b"data: " + payload + b"\n\n"
    assert parse(stream, *range(len(stream))) == [payload]
