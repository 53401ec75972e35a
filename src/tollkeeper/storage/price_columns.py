"""Builds SQL for the columns of prices and line items."""

from typing import LiteralString

from tollkeeper.domain.pricing import LINE_ITEMS, PRICE_DIMENSIONS

# The price columns of reservations, with their names in the domain.
PRICE_COLUMNS = {
    dimension.column: dimension.name for dimension in PRICE_DIMENSIONS if dimension.column
}


def prices(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    """Lists the price columns, each between `before` and `after`."""
    return ", ".join(before + name + after for name in PRICE_COLUMNS)


def line_items(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    return ", ".join(before + name + after for name in LINE_ITEMS)


def total(before: LiteralString = "") -> LiteralString:
    """Returns the expression for a settlement's whole cost."""
    return " + ".join(before + name for name in LINE_ITEMS)


def lines(before: LiteralString = "") -> LiteralString:
    """Returns a table expression of a settlement's line items: dimension and amount."""
    pairs = ", ".join("('" + name + "', " + before + name + ")" for name in LINE_ITEMS)
    return "(VALUES " + pairs + ") AS line (dimension, amount)"
