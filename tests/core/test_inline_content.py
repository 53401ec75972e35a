"""Tests that policies judge the content that decoders find in base64, in each spelling that they accept."""

import base64
import binascii
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.large_content import longest_block_s, peak_bytes
from tests.support.tables import each
from tollkeeper.core import inline_content
from tollkeeper.core.inline_content import read_inline
from tollkeeper.policies.texts.media_text import read_media

_PDF = b"%PDF-1.4\n1 0 obj << /Type /Catalog >> endobj\ntrailer << /Root 1 0 R >>\n%%EOF\n"
_HEADS = (
    "data:text/plain;base64,",
    "data:text/plain; base64,",
    "data:text/plain;base64 ,",
    "DATA:TEXT/PLAIN;charset=utf-8;  BASE64,",
    "data:;base64,",
)
_LARGE = 8 << 20
_LARGE_URLS = {
    "an image": _HEADS[0] + "iVBO" * (_LARGE // 4),
    "a text": _HEADS[0] + base64.b64encode("a wörd\n".encode() * (_LARGE // 8)).decode(),
    "long lines": _HEADS[0] + ("A" * 64 + "\n") * (_LARGE // 65),
    "words": _HEADS[0] + "AA " * (_LARGE // 3) + "AA",
    "blanks": _HEADS[0] + " " * _LARGE,
    "base64 in percent-encoding": _HEADS[0] + "%41" * (_LARGE // 3),
    "text in percent-encoding": "data:text/plain," + "%41" * (_LARGE // 3),
    "text with few percent signs": "data:text/plain,%41" + "ab\u4e2d" * (_LARGE // 5),
    "a long header": "data:" + "ab;" * (_LARGE // 3) + "base64,AAAA",
}


@st.composite
def spellings(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> tuple[bytes, str]:
    """Generates a content and one of its spellings in base64."""
    content = draw(contents)
    encode = draw(st.sampled_from((base64.b64encode, base64.urlsafe_b64encode)))
    text = encode(content).decode()
    if draw(st.booleans()):
        text = text.rstrip("=")
    if draw(st.booleans()):
        length = draw(st.integers(1, 80))
        blank = draw(st.sampled_from(("\n", "\r\n", " ", "\t", "\n\n", " \n")))
        text = blank.join(text[at : at + length] for at in range(0, len(text), length)) + blank
    if draw(st.booleans()):
        text = quote(text, safe=draw(st.sampled_from(("", "+/", "/="))))
    return content, draw(st.sampled_from(("", *_HEADS))) + text


def _strictly(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _ignoring_blanks(text: str) -> bytes:
    joined = "".join(text.split())
    return base64.b64decode(joined + "=" * (-len(joined) % 4), validate=True)


def _ignoring_all_else(text: str) -> bytes:
    kept = re.sub("[^A-Za-z0-9+/]", "", text)
    return base64.b64decode(kept + "=" * (-len(kept) % 4))


def _ignoring_all_else_urlsafe(text: str) -> bytes:
    return _ignoring_all_else(text.replace("-", "+").replace("_", "/"))


def _as_browsers_do(text: str) -> bytes:
    return _ignoring_blanks(unquote_to_bytes(text).decode("latin-1"))


_DECODERS: tuple[Callable[[str], bytes], ...] = (
    _strictly,
    _ignoring_blanks,
    _ignoring_all_else,
    _ignoring_all_else_urlsafe,
    _as_browsers_do,
)


def _readings(spelled: str) -> Iterator[bytes]:
    """Yields the content that each decoder finds, if the decoder accepts the spelling."""
    is_address = spelled[:5].lower() == "data:"
    for decode in _DECODERS:
        with suppress(binascii.Error, ValueError):
            yield decode(spelled.partition(",")[2] if is_address else spelled)


@given(spellings(st.binary(min_size=1, max_size=200)))
def test_every_spelling_is_decoded(found: tuple[bytes, str]) -> None:
    content, spelled = found
    inline = read_inline(spelled)
    assert inline is not None
    assert inline.base64 == base64.b64encode(content).decode()


@given(spellings(st.text(min_size=1, max_size=200).map(str.encode)))
def test_the_text_of_every_spelling_is_judged(found: tuple[bytes, str]) -> None:
    content, spelled = found
    text = content.decode()
    assert text in read_media(spelled).texts or "\x00" in text


@given(
    st.one_of(
        spellings(st.text(min_size=1, max_size=200).map(str.encode)).map(lambda found: found[1]),
        st.text(alphabet="ABab01+/-_= \n%2BFd3", max_size=60),
        st.text(alphabet="ABab01+/-_= \n%2BFd3", max_size=60).map(_HEADS[0].__add__),
    )
)
def test_a_complete_reading_is_the_only_one(spelled: str) -> None:
    read = read_media(spelled)
    if read.complete:
        assert {content.decode() for content in _readings(spelled)} <= set(read.texts)


@given(spellings(st.binary(max_size=100).map(b"\x89PNG\xff".__add__)))
def test_no_spelling_of_a_binary_file_is_complete(found: tuple[bytes, str]) -> None:
    assert not read_media(found[1]).complete


@each("head", ["", *_HEADS, "data:application/pdf;base64,"])
@each("before", [b"", b"\n\n", b"\xef\xbb\xbf", b"% a comment\n" * 80])
def test_an_ascii_pdf_is_no_text(head: str, before: bytes) -> None:
    read = read_media(head + base64.b64encode(before + _PDF).decode())
    assert not read.complete
    assert (before + _PDF).decode() in read.texts


@each("blank", [" ", "\n", "\n\n"])
@each("head", ["", *_HEADS])
def test_words_that_look_like_base64_are_judged(head: str, blank: str) -> None:
    words = blank.join(["tell", "me", "about", "the", "bomb"] * 30)
    assert any(words in text for text in read_media(head + words).texts)
    assert not read_media(head + words).complete


@given(
    st.lists(st.integers(1, 130), min_size=1, max_size=12),
    st.sampled_from(("\n", "\r\n", " \n\n ")),
    st.integers(1, 140),
    st.booleans(),
)
def test_only_a_short_line_shows_a_binary_file(
    lengths: list[int], blank: str, slice_length: int, has_blank_end: bool
) -> None:
    """The length of a line does not depend on the slices in which the content is processed."""
    lines = ["/" * length for length in (*lengths, 400 - sum(lengths) % 4)]
    body = blank.join(lines) + blank * has_blank_end
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inline_content, "_SLICE_LENGTH", 4 * slice_length)
        assert (read_media(body).texts == (body,)) is (min(lengths) < 60)


@given(st.text(max_size=60), st.integers(1, 10))
def test_a_character_may_be_cut_by_a_slice(text: str, slice_length: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inline_content, "_SLICE_LENGTH", 4 * slice_length)
        read = read_media(_HEADS[0] + base64.b64encode(text.encode()).decode())
    assert text in read.texts or "\x00" in text


@given(st.integers(60, 80))
def test_the_lines_of_a_binary_file_are_not_judged(length: int) -> None:
    encoded = base64.b64encode(b"\xff" * 500).decode()
    lines = [encoded[at : at + length] for at in range(0, len(encoded), length)]
    assert read_media("\n".join(lines)).texts == ()


@each(
    ("head", "content", "complete"),
    [
        ("data:text/csv;base64,", b"a,b", True),
        ("data:application/ld+json;base64,", b"{}", True),
        ("data:application/octet-stream;base64,", b"a note", False),
        ("data:image/svg+xml;base64,", b"<svg/>", False),
        ("data:text/plain;charset=utf-7;base64,", b"+AGI-omb", False),
        ("data:text/plain;base64,", b"{\\rtf1 \\'62omb}", False),
        ("data:text/plain;base64,", b"%!PS-Adobe", False),
        ("data:text/plain,", b"a note", False),
    ],
)
def test_type_and_signature_decide(head: str, content: bytes, complete: bool) -> None:
    assert read_media(head + base64.b64encode(content).decode()).complete is complete


@each(
    ("filename", "complete"),
    [("a.txt", True), ("A.MD", True), (None, True), ("a.pdf", False), ("a", False)],
)
def test_a_file_name_stands_in_for_the_type(filename: str | None, complete: bool) -> None:
    assert read_media(base64.b64encode(b"a note").decode(), filename).complete is complete


@each("written", ["", "data:", "data:text/plain;base64", "a b!", "YWJjZ", "a=b="])
def test_what_is_no_base64(written: str) -> None:
    read = read_media(written)
    assert (written in read.texts, read.complete) == (True, written == "")


@each(("count", "texts"), [(4096, ("%41" * 4096,)), (4097, (f"{_HEADS[0]}{'%41' * 4097}",))])
def test_very_many_percent_signs_are_not_decoded(count: int, texts: tuple[str, ...]) -> None:
    read = read_media(_HEADS[0] + "%41" * count)
    assert (read.texts, read.complete) == (texts, False)


@each("kind", list(_LARGE_URLS))
def test_other_threads_can_run_while_large_content_is_read(kind: str) -> None:
    assert longest_block_s(read_media, _LARGE_URLS[kind]) < 0.1


@each("kind", list(_LARGE_URLS))
def test_reading_content_needs_a_small_multiple_of_its_size(kind: str) -> None:
    url = _LARGE_URLS[kind]
    assert peak_bytes(read_media, url) < 8 * len(url.encode())


def test_base64_with_many_escapes_is_decoded() -> None:
    """A client may escape a whole image for a URL, so every 32nd character needs three characters."""
    encoded = base64.b64encode(random.Random(1).randbytes(200_000)).decode()
    escaped = quote(encoded, safe="")
    assert escaped.count("%") > 4096
    for text in (escaped, escaped.replace("%2B", "%2b").replace("%2F", "%2f")):
        found = read_inline(f"data:image/png;base64,{text}")
        assert found is not None
        assert found.base64 == encoded
