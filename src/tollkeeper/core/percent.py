"""Basis points, which the interface uses, and percentages, which operators read."""

import re

from tollkeeper.core.errors import InvalidRequest

BASIS_POINTS = 10_000


def percent_of(basis_points: int) -> str:
    """5750 becomes "57.5 %"."""
    whole, rest = divmod(basis_points, 100)
    return f"{whole}.{rest:02d}".rstrip("0").rstrip(".") + " %"


def basis_points_of(percent: str) -> int:
    """With or without a percent sign. Raises InvalidRequest unless it's above 0 and below 100."""
    match = re.fullmatch(r"([0-9]{1,2})(?:\.([0-9]{1,2}))?\s*%?", percent.strip())
    basis_points = int(match[1] + (match[2] or "").ljust(2, "0")) if match else 0
    if not basis_points:
        raise InvalidRequest(
            f"{percent[:40]!r} is not a threshold: give a percentage from 0.01 % to 99.99 %.",
            param="threshold",
        )
    return basis_points
