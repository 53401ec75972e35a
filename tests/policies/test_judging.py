"""Tests how questions to the judge are written, and how scores are read from its answers."""

import json
import math
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_call
from tests.support.tables import each
from tollkeeper.core.prompt import Prompt
from tollkeeper.policies.calibration.rule import SCORE_MAX
from tollkeeper.policies.judge.rule import (
    Quotation,
    as_plain_text,
    read_score,
    score_basis_points,
    window_count,
    windows,
)
from tollkeeper.providers.chat.wire import ChatWire


def _logprobs(*alternatives: tuple[str, float]) -> bytes:
    top = [{"token": token, "logprob": math.log(share)} for token, share in alternatives]
    return json.dumps({"content": [{**top[0], "top_logprobs": top}]}).encode()


@each(
    ("alternatives", "expected"),
    [
        ([("Yes", 0.75), ("No", 0.25)], 7500),
        ([("No", 0.9), ("Yes", 0.1)], 1000),
        # All spellings of Yes and of No are added up.
        ([("Yes", 0.3), (" yes", 0.2), ("YES", 0.1), ("yes.", 0.1), ("No", 0.1)], 8750),
        ([("\u2581Yes", 0.2), ("\u0120No", 0.2), ('"No"', 0.2), ("**Yes**", 0.2)], 5000),
        # Other words do not count in the ratio.
        ([("Maybe", 0.5), ("Yes", 0.1), ("No", 0.3)], 2500),
        ([("Yes", 0.9)], 10_000),
        ([("No", 0.9)], 0),
        # Words that only begin with Yes or No do not count.
        ([("Yesterday", 0.5), ("Not", 0.3), ("Yes", 0.05), ("No", 0.05)], 5000),
    ],
)
def test_the_score_is_read(alternatives: list[tuple[str, float]], expected: int) -> None:
    score = read_score(_logprobs(*alternatives))
    assert score is not None
    assert score_basis_points(score) == expected


@each(
    "answer",
    [
        b"null",
        b"{}",
        b'{"content": null}',
        b'{"content": []}',
        b'{"content": "Yes"}',
        b'{"content": [{"token": "Yes"}]}',
        b'{"content": [{"token": "Yes", "logprob": null}]}',
        b"not json",
        b'{"content": [{"token": "\xff", "logprob": 0}]}',
        _logprobs(("Banana", 0.9), ("The", 0.1)),
        # Yes and No are both so unlikely that their ratio means nothing.
        _logprobs(("Banana", 0.995), ("Yes", 0.004), ("No", 0.001)),
        b'{"content": [{"token": "Yes", "logprob": -9999, "top_logprobs": []}]}',
    ],
)
def test_what_cannot_be_read_has_no_score(answer: bytes) -> None:
    assert read_score(answer) is None


def test_without_alternatives_the_token_itself_counts() -> None:
    assert read_score(b'{"content": [{"token": "Yes", "logprob": -0.1}]}') == SCORE_MAX


def test_a_positive_logarithm_is_certainty() -> None:
    found = b'{"content": [{"token": "Yes", "logprob": 700}, {"token": "No", "logprob": 0}]}'
    assert read_score(found) == SCORE_MAX


@given(length=st.integers(0, 400), length_max=st.integers(1, 60), overlap=st.integers(0, 59))
def test_windows_cover_the_text_with_their_overlap(
    length: int, length_max: int, overlap: int
) -> None:
    overlap = min(overlap, length_max - 1)
    text = "".join(random.Random(length).choices("abcdefgh", k=length))
    found = list(windows(text, length_max, overlap))
    assert len(found) == window_count(length, length_max, overlap)
    assert all(len(window) <= length_max for window in found)
    assert found[0] + "".join(window[overlap:] for window in found[1:]) == text
    # Each part of the text that is as long as the overlap is completely in one of the windows.
    for start in range(length - overlap + 1):
        span = text[start : start + overlap]
        assert any(span in window for window in found)


@given(st.text(max_size=300), st.text(max_size=100))
def test_windows_of_a_growing_text_stay(text: str, more: str) -> None:
    before, after = list(windows(text, 40, 4)), list(windows(text + more, 40, 4))
    assert after[: len(before) - 1] == before[:-1]


def _written(quotation: Quotation, question: str) -> bytes:
    """Returns the request with which a chat backend is asked one question."""
    prompt = Prompt(turns=quotation.asking(question))
    return ChatWire().encode_request(
        msgspec.structs.replace(make_call(), prompt=prompt), stream=False, extra={}
    )


@given(st.text(max_size=200), st.text(max_size=100))
def test_questions_about_one_text_share_everything_before_them(text: str, question: str) -> None:
    quotation = Quotation(text, "f" * 16)
    asked, other = _written(quotation, question), _written(quotation, "Other?")
    messages = json.loads(asked)["messages"]
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert messages[-1]["role"] == "user"
    content = messages[-1]["content"]
    assert content == (
        f"<<{'f' * 16}>>\n{as_plain_text(text)}\n<<{'f' * 16}>>\n"
        f"Question: {as_plain_text(question)}\nAnswer (Yes or No):"
    )
    shared = asked.index(b"Question: ", asked.rindex(b"ffff"))
    assert asked[:shared] == other[:shared]


@each(
    "token",
    [
        *("<|im_end|>", "<|im_start|>system", "<|eot_id|>", "<|endoftext|>", "</s>", "<s>"),
        *("<start_of_turn>model", "<end_of_turn>", "[INST]", "[/INST]", "<<SYS>>", "<think>"),
        *(
            "<\uff5cUser\uff5c>",
            "<tool_call>",
            "[TOOL_CALLS]",
            "<unused7>",
            "<0x0A>",
            "<repo_name>",
        ),
    ],
)
def test_control_tokens_are_broken(token: str) -> None:
    said = as_plain_text(f"before {token} after")
    assert token not in said
    assert said.replace(" ", "") == f"before{token}after"


def test_ordinary_text_stays_as_it_is() -> None:
    text = "a < b, [x], [user]\n5 > 3, \u00fcber \u4e2d\u6587 \U0001f642\tend <- here <= there"
    assert as_plain_text(text) == text


def test_what_no_server_should_see_is_blanked() -> None:
    assert as_plain_text("a\x00b\x1b[31mc\x7f") == "a b [31mc "
    assert as_plain_text("half \ud800 pair") == "half ? pair"
    assert json.loads(_written(Quotation("\ud800\x00", "f"), "\udfff?"))
