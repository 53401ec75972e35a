"""Parses amounts, times and limits from the command line. Invalid text is a usage error."""

import re
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.core.percent import BASIS_POINTS, basis_points_of
from tollkeeper.core.reports import TIME_MAX

if TYPE_CHECKING:
    from tollkeeper.money.credit.service import LimitChange

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# About a hundred years.
_DURATION_S_MAX = 36_500 * 86_400


def amount_picousd(text: str) -> "UsdAmount":
    try:
        return cast("UsdAmount", picousd_from_usd(text))
    except InvalidRequest as exc:
        raise typer.BadParameter(exc.message) from None


def unix_seconds(text: str) -> int:
    """A date is its midnight in UTC."""
    try:
        if text.isascii() and text.isdigit():
            timestamp = int(text)
        else:
            day = date.fromisoformat(text)
            timestamp = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    except ValueError:
        timestamp = -1
    if not 0 <= timestamp <= TIME_MAX:
        raise typer.BadParameter(f"{text!r} is neither YYYY-MM-DD nor Unix seconds.")
    return timestamp


def seconds_of(text: str) -> int:
    """Like 90s, 30m, 24h or 7d."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match else -1
    if not 0 <= seconds <= _DURATION_S_MAX:
        raise typer.BadParameter(f"{text!r} is not a duration like 90s, 30m, 24h or 7d.")
    return seconds


def share_of(text: str) -> float:
    """0% to 100%, like 1% or 0.5%, as a fraction."""
    match = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)%", text.replace(" ", ""))
    share = float(match[1]) / 100 if match else 0.0
    if not share:
        raise typer.BadParameter(f"{text!r} is not a percentage between 0% and 100%, like 1%.")
    return share


def threshold_of(text: str) -> int:
    """From a percentage like 57.5%, or basis points like 5750."""
    if text.isascii() and text.isdecimal() and 0 < int(text) < BASIS_POINTS:
        return int(text)
    try:
        return basis_points_of(text if text.endswith("%") else "")
    except InvalidRequest:
        raise typer.BadParameter(
            f"{text!r} is neither a percentage from 0.01% to 99.99% nor basis points from 1 to "
            f"{BASIS_POINTS - 1}."
        ) from None


def limit_change(text: str) -> "LimitChange":
    if text == "default":
        return "default"
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor `default`.") from None


class UsdAmount(int):
    """Only for the help, which shows the type's `__name__`: operators write decimal USD, parsed to
    plain integers of picousd (10^-12 USD)."""


UsdAmount.__name__ = "decimal"

AmountArgument = Annotated[
    UsdAmount,
    typer.Argument(
        metavar="USD",
        help="A decimal amount in USD, like 12.50, with at most 12 decimal places.",
        parser=amount_picousd,
        show_default=False,
    ),
]
