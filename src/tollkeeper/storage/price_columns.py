"""Builds SQL fragments for the columns with prices (in reservations, the rows of holds) and with
line items (in settlements)."""

from typing import LiteralString

from tollkeeper.domain.pricing import LINE_ITEMS, PRICE_DIMENSIONS

# The price columns of reservations, each with the name of its price in the domain.
PRICE_COLUMNS = {
    dimension.column: dimension.name for dimension in PRICE_DIMENSIONS if dimension.column
}


def prices(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    """Returns the names of the price columns, separated by commas, each between `before` and
    `after`."""
    return ", ".join(before + name + after for name in PRICE_COLUMNS)


def line_items(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    return ", ".join(before + name + after for name in LINE_ITEMS)


def zero_if_missing() -> LiteralString:
    """Returns the line item columns of a select list. Missing line items are zero."""
    return ", ".join("coalesce(" + name + ", 0) AS " + name for name in LINE_ITEMS)


def sums() -> LiteralString:
    return ", ".join("sum(" + name + ") AS " + name for name in LINE_ITEMS)


def total(before: LiteralString = "") -> LiteralString:
    return " + ".join(before + name for name in LINE_ITEMS)


def lines(before: LiteralString = "") -> LiteralString:
    """Returns a table expression with one row for each line item of a settlement: dimension and
    amount."""
    pairs = ", ".join("('" + name + "', " + before + name + ")" for name in LINE_ITEMS)
    return "(VALUES " + pairs + ") AS line (dimension, amount)"
