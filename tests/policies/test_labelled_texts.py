"""Tests how files of labelled texts are read, and that errors name the line."""

import codecs

import pytest

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.policies.trial.labelled_texts import BYTES_MAX, read_texts
from tollkeeper.policies.trial.service import TrialText

_EXPECTED = [
    TrialText("one", True),
    TrialText("two, too", False),
    TrialText("three", None),
    TrialText("no", True, "May I?"),
]


def test_json_lines_and_csv_say_the_same() -> None:
    lines = b"""{"text": "one", "label": true, "kind": "ignored"}
{"text": "two, too", "label": "No"}

{"text": "three"}
{"request": "May I?", "answer": "no", "label": 1}
"""
    table = """Text,request,answer,Label
one,,,yes
"two, too",,,false
three,,,
"""
    assert read_texts(lines) == _EXPECTED
    assert (
        read_texts(table.replace(",request,answer", "").replace(",,,", ",").encode())
        == _EXPECTED[:3]
    )
    assert read_texts(b"request,answer,label\nMay I?,no,1\n") == _EXPECTED[3:]
    assert read_texts(b"") == []


@pytest.mark.parametrize("content", [b'{"text": "one", "label": true}\n', b"text,label\none,yes\n"])
def test_a_byte_order_mark_does_not_matter(content: bytes) -> None:
    assert read_texts(codecs.BOM_UTF8 + content) == _EXPECTED[:1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a", "label": "maybe"}', "Line 1 of the file: 'maybe' is no label"),
        (b'{"text": "a", "label": 0.5}', "'0.5' is no label"),
        (b'{"text": "a"}\n{"text": "  "}', "Line 2 of the file: the text is empty"),
        (b'{"text": "a"}\n{"text": "b"}\n{"text": "a"}', "Line 3 of the file: it repeats line 1"),
        (b'{"text": 1}', "Line 1 of the file: A line has a text"),
        (b'{"label": true}', "Line 1 of the file: A line has a text"),
        (b'{"answer": "a"}', "Line 1 of the file: A line has a text"),
        (b'{"request": "a", "text": "b"}', "Line 1 of the file: A line has a text"),
        (b'{"text": "a"}\nnot json', "Line 2 of the file"),
        (b"text,label\na,yes\nb,perhaps\n", "Line 3 of the file: 'perhaps' is no label"),
        (b'text,label\n"a,yes\n', "Line 1 of the file"),
        (b"text\n\xff\n", "not in UTF-8"),
        (b"only,words\na,b\n", "A line has a text"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(content: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        read_texts(content)
    assert refused.value.param == "file"


def test_a_file_that_is_too_large_is_not_read() -> None:
    with pytest.raises(InvalidRequest, match="at most 32 MiB"):
        read_texts(b"x" * (BYTES_MAX + 1))
