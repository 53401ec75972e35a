"""Tests how many bytes a text grows if a tokenizer converts it to a Unicode normal form."""

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.normal_form import _GROWTH, added_bytes, growth


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _longest(text: str) -> int:
    forms = unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text)
    return max(map(_utf8_length, forms))


@pytest.mark.slow
def test_every_character_that_becomes_longer_is_known() -> None:
    characters = map(chr, range(sys.maxunicode + 1))
    assert {one: grown for one in characters if (grown := growth(one))} == _GROWTH


@each(
    ("text", "added"),
    [
        ("", 0),
        ("plain text", 0),
        ("Счастливые семьи", 0),
        ("吾輩は猫である\uff01\uff08名前はまだ無い\uff09…", 0),
        ("\ufdfa", 30),
        ("a\ufdfab\u3316" * 5000, 5000 * 45),
        ("½ cup", 3),
        # A musical symbol that NFC splits into three characters.
        ("\U0001d160", 8),
        # A letter with two accents. The dot below joins the letter, so both accents are detached.
        ("\u0231\u0323", 3),
        # An unpaired surrogate, which JSON can contain.
        ("\ud800\ufdfa", 30),
    ],
)
def test_what_is_added(text: str, added: int) -> None:
    assert added_bytes(text) == added


@given(st.text(max_size=200))
def test_no_normal_form_is_longer(text: str) -> None:
    assert _longest(text) <= _utf8_length(text) + added_bytes(text)


_LETTERS = [chr(code) for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))]
_MARKS = [chr(code) for code in range(0x300, 0x370)]


@settings(max_examples=500)
@given(st.text(st.sampled_from([*_LETTERS, *_MARKS]), max_size=30))
def test_no_normal_form_is_longer_where_marks_change_places(text: str) -> None:
    assert _longest(text) <= _utf8_length(text) + added_bytes(text)


@given(st.text(st.sampled_from([*_GROWTH, "e", " ", "\u0301", "\uff01", "\u1100", "\u1161"])))
def test_no_normal_form_is_longer_where_much_grows(text: str) -> None:
    assert _longest(text) <= _utf8_length(text) + added_bytes(text)
