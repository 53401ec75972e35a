"""The running count of an answer: what it keeps of the text is bounded."""

import pytest

from tests.support.backend_calls import make_call
from tollkeeper.domain.inference import Delta
from tollkeeper.domain.metering import Meter


@pytest.mark.parametrize("size", [1, 100, 10_000, 1_000_000])
def test_little_of_the_text_is_kept(size: int) -> None:
    """A stream may be open for long, and its pieces may be large."""
    meter, text = Meter(make_call(streamed=True), 10), "word " * (size // 5) + "x"
    for _ in range(300):
        meter.count([Delta(0, text=text)])
        assert sum(map(len, meter._kept)) <= 16_384
    assert meter.output_tokens >= 300 * len(text) // 8


def test_small_pieces_are_counted_together() -> None:
    """A tokenizer sees the words and not their pieces."""
    whole, pieces = (Meter(make_call(streamed=True), 10) for _ in range(2))
    whole.count([Delta(0, text="Hello " * 100)])
    for _ in range(100):
        pieces.count([Delta(0, text="Hello ")])
    assert pieces._counted_tokens == 0
    assert pieces.output_tokens == max(100, whole.output_tokens)
