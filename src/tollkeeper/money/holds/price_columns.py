"""SQL fragments for prices (in reservations) and line items (in settlements)."""

from typing import LiteralString

from tollkeeper.core.pricing import LINE_ITEMS, PRICE_DIMENSIONS

# By the price's name in the domain.
PRICE_COLUMNS = {
    dimension.column: dimension.name for dimension in PRICE_DIMENSIONS if dimension.column
}


def prices(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    """Separated by commas, each between `before` and `after`."""
    return ", ".join(before + name + after for name in PRICE_COLUMNS)


def line_items(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    return ", ".join(before + name + after for name in LINE_ITEMS)


def zero_if_missing() -> LiteralString:
    """The line items of a select list."""
    return ", ".join("coalesce(" + name + ", 0) AS " + name for name in LINE_ITEMS)


def sums() -> LiteralString:
    return ", ".join("sum(" + name + ") AS " + name for name in LINE_ITEMS)


def total(before: LiteralString = "") -> LiteralString:
    return " + ".join(before + name for name in LINE_ITEMS)


def lines(before: LiteralString = "") -> LiteralString:
    """A row per line item of a settlement: dimension and amount."""
    pairs = ", ".join("('" + name + "', " + before + name + ")" for name in LINE_ITEMS)
    return "(VALUES " + pairs + ") AS line (dimension, amount)"
