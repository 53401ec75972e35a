"""Tests the estimate of a text's tokens: its sum of weights is exact, and no estimate exceeds the bytes."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.estimate import (
    _SLICE_BYTES,
    _SUMMED_AT_ONCE,
    _WEIGHT_OF,
    _sum_of_bytes,
    estimate_tokens,
    measure_text,
)


@given(st.binary(max_size=4 * _SUMMED_AT_ONCE))
def test_the_sum_of_weights_is_that_of_python(data: bytes) -> None:
    weights = data.translate(_WEIGHT_OF)
    assert _sum_of_bytes(weights) == sum(weights)


@each("length", [0, 1, _SUMMED_AT_ONCE, _SUMMED_AT_ONCE + 1, 100_000])
def test_the_heaviest_bytes_do_not_overflow_a_slice(length: int) -> None:
    heaviest = bytes([max(_WEIGHT_OF)]) * length
    assert _sum_of_bytes(heaviest) == length * max(_WEIGHT_OF)


def test_a_text_of_rare_bytes_has_a_token_for_each() -> None:
    assert estimate_tokens("\u00e9" * 5000) == 10_000


@each("run", ["  ;", "   e", "  1", "\n        e", "  \n"])
def test_a_run_of_spaces_is_a_token(run: str) -> None:
    """Every tokenizer needs at least two tokens for each of these texts, wherever a slice ends."""
    count = 3 * _SLICE_BYTES // len(run)
    assert estimate_tokens(run * count) >= 2 * count


def test_what_becomes_longer_in_a_normal_form_counts_in_that_form() -> None:
    """Some tokenizers normalize texts first. That of Claude 2 needed 15 tokens for this character."""
    text = "\ufdfa" * 1000
    assert estimate_tokens(text) >= 15 * 1000
    assert measure_text(text)[1] == 33 * 1000


@given(st.text(max_size=300))
def test_no_estimate_exceeds_the_bytes(text: str) -> None:
    tokens, bytes_max = measure_text(text)
    assert 0 <= tokens <= bytes_max
    assert bytes_max >= len(text.encode("utf-8", "surrogatepass"))
