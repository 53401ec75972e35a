"""Formats CSV that's safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Sequence

# A spreadsheet takes a cell that begins like this for a formula. So `_cell` puts a quote in front,
# unless it's a number.
_FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return output.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, str) and text.startswith(_FORMULA_BEGINNINGS) and not _is_number(text):
        return "'" + text
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
