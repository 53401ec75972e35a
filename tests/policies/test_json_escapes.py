r"""Tests that `\uXXXX` is decoded for the judge in any text, in small steps, and that the text as it was
written stays readable."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.large_content import longest_block_s, peak_bytes
from tests.support.tables import each
from tollkeeper.policies.texts import json_escapes
from tollkeeper.policies.texts.json_escapes import with_decoded_escapes

_LARGE = 4 << 20
_LARGE_TEXTS = {
    "only escapes": "\\u4e2d" * (_LARGE // 6),
    "escapes and letters": "\\u0062omb" * (_LARGE // 9),
    "halves of pairs": "\\ud800" * (_LARGE // 6),
    "one escape": "\\u0062" + "a" * _LARGE,
    "no escape": "\\uz" * (_LARGE // 3),
    "backslashes": "\\" * _LARGE + "u0062",
    "lines": "\n" * _LARGE + "\\u0062",
}


@each(
    ("text", "decoded"),
    [
        ("a \\u0062\\u006Fmb", "a bomb"),
        ('{"a": "\\\\u0062omb"}', '{"a": "\\bomb"}'),
        ("smile \\ud83d\\ude00", "smile \U0001f600"),
        ("half \\ud83d pair", "half \ufffd pair"),
        ("ends \\ude00", "ends \ufffd"),
        ("card \\u4111\\u1111\\u1111\\u1111", "card \u4111\u1111\u1111\u1111"),
        ("C:\\users\\uface.txt", "C:\\users\uface.txt"),
    ],
)
def test_the_text_is_followed_by_its_decoded_form(text: str, decoded: str) -> None:
    assert with_decoded_escapes(text) == f"{text}\n{decoded}"


@each("text", ["", "bomb", "C:\\users\\new", "\\u", "\\u12", "\\u00g1 \\U0062", '\\n\\t\\"'])
def test_a_text_without_escapes_stays_as_it_is(text: str) -> None:
    assert with_decoded_escapes(text) is text


def test_only_lines_with_escapes_are_repeated() -> None:
    text = "one\ntwo \\u0062\nthree\nfour \\u0062\nfive"
    assert with_decoded_escapes(text) == f"{text}\ntwo b\nthree\nfour b"


_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\\\n")


@given(st.lists(st.tuples(_CHARACTERS, st.booleans()), min_size=1), st.integers(6, 20))
def test_text_is_decoded_in_slices_of_every_length(
    characters: list[tuple[str, bool]], length: int
) -> None:
    text = "".join(character for character, _ in characters)
    written = "".join(
        f"\\u{ord(character):04x}" if escaped and ord(character) < 1 << 16 else character
        for character, escaped in characters
    )
    pair = json.dumps("\U0001f600")[1:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_escapes, "_SLICE_LENGTH", length)
        found = with_decoded_escapes(f"{pair}{written}{pair}")
    assert found == f"{pair}{written}{pair}\n\U0001f600{text}\U0001f600"


@each("kind", list(_LARGE_TEXTS))
def test_other_threads_can_run_while_a_large_text_is_decoded(kind: str) -> None:
    assert longest_block_s(with_decoded_escapes, _LARGE_TEXTS[kind]) < 0.1


@each("kind", ["only escapes", "escapes and letters", "halves of pairs"])
def test_decoding_needs_a_small_multiple_of_the_size(kind: str) -> None:
    text = _LARGE_TEXTS[kind][: 1 << 19]
    assert peak_bytes(with_decoded_escapes, text) < 8 * len(text)
