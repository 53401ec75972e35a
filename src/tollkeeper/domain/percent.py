"""Converts between percent for people and basis points for the interface."""

import re

from tollkeeper.domain.errors import InvalidRequest

BASIS_POINTS = 10_000


def percent_of(basis_points: int) -> str:
    """Formats basis points for people: 5750 is 57.5 %."""
    whole, rest = divmod(basis_points, 100)
    return f"{whole}.{rest:02d}".rstrip("0").rstrip(".") + " %"


def basis_points_of(percent: str) -> int:
    """Reads a threshold in percent, with or without the sign. Raises InvalidRequest."""
    found = re.fullmatch(r"([0-9]{1,2})(?:\.([0-9]{1,2}))?\s*%?", percent.strip())
    basis_points = int(found[1] + (found[2] or "").ljust(2, "0")) if found else 0
    if not basis_points:
        raise InvalidRequest(
            f"{percent[:40]!r} is not a threshold: give a percentage from 0.01 % to 99.99 %.",
            param="threshold",
        )
    return basis_points
