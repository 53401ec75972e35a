"""Tests that amounts are converted exactly in both directions, and refused if they cannot be exact."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import PICOUSD_MAX, PICOUSD_PER_USD, picousd_from_usd, usd_from_picousd

_amounts = st.integers(min_value=1 - PICOUSD_MAX, max_value=PICOUSD_MAX - 1)


@given(_amounts)
def test_round_trip(amount: int) -> None:
    assert picousd_from_usd(usd_from_picousd(amount)) == amount


@given(_amounts)
def test_text_is_the_exact_decimal(amount: int) -> None:
    text = usd_from_picousd(amount)
    assert Decimal(text) == Decimal(amount) / PICOUSD_PER_USD
    assert "e" not in text.lower()
    assert not ("." in text and text.endswith("0"))
    assert not text.endswith(".")


@given(st.lists(_amounts, max_size=20))
def test_texts_add_up_like_the_integers(amounts: list[int]) -> None:
    total = sum((Decimal(usd_from_picousd(amount)) for amount in amounts), Decimal(0))
    assert total * PICOUSD_PER_USD == sum(amounts)


@given(
    whole=st.integers(min_value=0, max_value=10**15 - 1),
    fraction=st.text(alphabet="0123456789", min_size=1, max_size=30),
    negative=st.booleans(),
)
def test_finer_than_the_unit_is_refused_and_never_rounded(
    whole: int, fraction: str, *, negative: bool
) -> None:
    text = f"{'-' if negative else ''}{whole}.{fraction}"
    if fraction[12:].strip("0"):
        with pytest.raises(InvalidRequest):
            picousd_from_usd(text)
    else:
        amount = whole * PICOUSD_PER_USD + int(fraction[:12].ljust(12, "0"))
        assert picousd_from_usd(text) == (-amount if negative else amount)


@each(
    ("text", "amount"),
    [
        ("0", 0),
        ("-0", 0),
        ("0.0", 0),
        ("0.06", 60_000_000_000),
        ("-0.5", -500_000_000_000),
        ("0.000000000001", 1),
        ("0.000000000001000000000000000000", 1),
        ("00012", 12 * 10**12),
        ("999999999999999.999999999999", 10**27 - 1),
        ("1000000000000", 10**24),
    ],
)
def test_amount(text: str, amount: int) -> None:
    assert picousd_from_usd(text) == amount


# The last two texts have more digits than Python's default decimal context keeps.
_REFUSED = [
    "",
    " ",
    "1 ",
    " 1",
    "1\n",
    "+1",
    "--1",
    "1.",
    ".5",
    "1,5",
    "1e3",
    "1E-12",
    "0x10",
    "1_000",
    "NaN",
    "Infinity",
    "-",
    "$1",
    "1.5.5",
    "\uff11",
    "\u0661",
    "1\x00",
    "1" * 16,
    "0." + "1" * 31,
    "0.0000000000001",
    "1.000000000000000000000000000001",
    "999999999999999.99999999999999",
]


def test_an_amount_that_is_too_large_is_called_so() -> None:
    with pytest.raises(InvalidRequest, match="1000000000000000 USD is too large: amounts have at "):
        picousd_from_usd("1" + "0" * 15)


@each("text", _REFUSED)
def test_refusal_names_the_parameter(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        picousd_from_usd(text, param="pricing.prompt")
    assert refused.value.param == "pricing.prompt"


@each(
    ("amount", "text"),
    [(0, "0"), (1, "0.000000000001"), (10**12, "1"), (-(10**11), "-0.1"), (10**24, str(10**12))],
)
def test_text(amount: int, text: str) -> None:
    assert usd_from_picousd(amount) == text
