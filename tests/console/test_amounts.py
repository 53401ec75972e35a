"""Tests how pages show amounts."""

import pytest
from markupsafe import Markup

from tollkeeper.console.amounts import exact_usd, number, usd

_USD = 10**12


@pytest.mark.parametrize(
    ("picousd", "shown"),
    [
        (None, "\u2013"),
        (0, "$0"),
        (_USD // 2, "$0.50"),
        (25 * _USD + _USD // 2, "$25.50"),
        (35 * _USD, "$35.00"),
        (-35 * _USD, "-$35.00"),
        (1_234_567 * _USD + _USD // 2, "$1,234,567.50"),
        (-1_234 * _USD, "-$1,234.00"),
        (10**27, "$1,000,000,000,000,000.00"),
        (42_500_000, "$0.0000425"),
        (1, "$0.000000000001"),
        (-1, "-$0.000000000001"),
    ],
)
def test_both_forms_of_an_amount_look_alike(picousd: int | None, shown: str) -> None:
    assert (exact_usd(picousd), usd(picousd)) == (shown, shown)


@pytest.mark.parametrize(
    ("picousd", "short", "exact"),
    [
        (1_234 * _USD + 56_789_000_000, "$1,234.0568", "$1,234.056789"),
        (-1_234 * _USD - 56_789_000_000, "-$1,234.0568", "-$1,234.056789"),
        (12_345_000_000, "$0.0123", "$0.012345"),
        (999_999 * _USD + 999_999_000_000, "$1,000,000.00", "$999,999.999999"),
    ],
)
def test_a_rounded_amount_has_the_exact_one_as_tooltip(
    picousd: int, short: str, exact: str
) -> None:
    assert usd(picousd) == Markup(f'<span title="{exact}">{short}</span>')
    assert exact_usd(picousd) == exact


def test_numbers_are_grouped_like_amounts() -> None:
    assert [number(value) for value in (None, 0, 1234, 1234567.8)] == [
        "\u2013",
        "0",
        "1,234",
        "1,234,568",
    ]
