"""The estimate of a text's tokens: its sum of weights is exact for every length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.domain.estimate import _SUMMED_AT_ONCE, _WEIGHT_OF, _sum_of_bytes, estimate_tokens


@given(st.binary(max_size=4 * _SUMMED_AT_ONCE))
def test_the_sum_of_weights_is_that_of_python(data: bytes) -> None:
    weights = data.translate(_WEIGHT_OF)
    assert _sum_of_bytes(weights) == sum(weights)


@pytest.mark.parametrize("length", [0, 1, _SUMMED_AT_ONCE, _SUMMED_AT_ONCE + 1, 100_000])
def test_the_heaviest_bytes_do_not_overflow_a_slice(length: int) -> None:
    heaviest = bytes([max(_WEIGHT_OF)]) * length
    assert _sum_of_bytes(heaviest) == length * max(_WEIGHT_OF)


def test_a_text_of_rare_bytes_has_a_token_for_each() -> None:
    assert estimate_tokens("\u00e9" * 5000) == 10_000
