"""The columns of prices and of line items, in SQL."""

from typing import LiteralString

from tollkeeper.domain.pricing import LINE_ITEMS, PRICE_DIMENSIONS

# The columns of reservations with the prices of a hold, and what each is called in the domain.
PRICE_COLUMNS = {
    dimension.column: dimension.name for dimension in PRICE_DIMENSIONS if dimension.column
}


def prices(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    """The columns of prices, each with this text before and after its name."""
    return ", ".join(before + name + after for name in PRICE_COLUMNS)


def line_items(before: LiteralString = "", after: LiteralString = "") -> LiteralString:
    return ", ".join(before + name + after for name in LINE_ITEMS)


def total(before: LiteralString = "") -> LiteralString:
    """The whole cost of a settlement."""
    return " + ".join(before + name for name in LINE_ITEMS)


def lines(before: LiteralString = "") -> LiteralString:
    """A table of the line items of a settlement: dimension and amount."""
    pairs = ", ".join("('" + name + "', " + before + name + ")" for name in LINE_ITEMS)
    return "(VALUES " + pairs + ") AS line (dimension, amount)"
