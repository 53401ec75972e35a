"""Reads usage reports by a protocol's table of counts, and stated prices. The ledger stores these
in picousd (10⁻¹² USD) beside the gateway's own price, which alone is charged."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from tollkeeper.core.inference import UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import ImpossibleCount, ReportedUsage, normalised, read_count
from tollkeeper.providers.answer_json import decode_any, value_or_none

_PICOUSD_PER_USD = 10**12
# xAI's unit.
_PICOUSD_PER_TICK = 100
# More is impossible, and ignored.
_USD_MAX = 10**9


class Counts:
    """Where a report has each count: a path through nested objects, or several separated by spaces,
    of which the first with a count wins."""

    def __init__(self, **paths: str) -> None:
        self._paths = {
            field: [tuple(way.split(".")) for way in ways.split()] for field, ways in paths.items()
        }

    def read(self, reported: FreeObject) -> dict[str, Any]:
        """Raises ImpossibleCount."""
        return {field: _first(reported, ways) for field, ways in self._paths.items()}


def _first(reported: FreeObject, paths: list[tuple[str, ...]]) -> int | None:
    for *parents, name in paths:
        found = reported
        for parent in parents:
            found = details(found, parent)
        if (count := read_count(found.get(name))) is not None:
            return count
    return None


def details(reported: FreeObject, name: str) -> FreeObject:
    found = reported.get(name)
    return found if isinstance(found, dict) else {}


def known_details(**counts: int | None) -> FreeObject | None:
    """For clients, with chat's names."""
    return {name: count for name, count in counts.items() if count is not None} or None


def report_in(usage: msgspec.Raw, read: Callable[[Any], UsageReport]) -> UsageReport | None:
    raw = value_or_none(usage)
    return None if raw is None else read(decode_any(raw))


def usage_report(
    reported: Any, read: Callable[[FreeObject], ReportedUsage], service_tier: str | None = None
) -> UsageReport:
    """If `reported` is no object, at most the service tier. If a count is impossible, the unchanged
    report in `impossible`."""
    if not isinstance(reported, dict):
        return UsageReport(ReportedUsage(service_tier=service_tier))
    try:
        return UsageReport(read(reported))
    except ImpossibleCount:
        return UsageReport(None, impossible=reported)


def usage_means_charge(report: UsageReport) -> bool:
    """Even if the answer has an error. Not if a token count is missing or there are no tokens, or
    with no output tokens and a stated price of zero (OpenRouter). Impossible counts mean
    charged."""
    if report.usage is None:
        return True
    usage = normalised(report.usage)
    if usage is None or usage.total_tokens == 0:
        return False
    return usage.completion_tokens > 0 or report.usage.cost_picousd != 0


def usd_in_picousd(value: object) -> int | None:
    """None if it can't be a price."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        usd = Decimal(str(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None
    if not usd.is_finite() or not 0 <= usd <= _USD_MAX:
        return None
    return int(usd * _PICOUSD_PER_USD)


def stated_cost(reported: FreeObject) -> int | None:
    """In picousd. `cost` is a number (OpenRouter), or an object with a total (Perplexity). With the
    operator's own key at OpenRouter (`is_byok`), it's only the fee, so the provider's charge is
    added."""
    cost = reported.get("cost")
    stated = usd_in_picousd(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if reported.get("is_byok") is not True:
        return stated
    details = reported.get("cost_details")
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    provider_charge = usd_in_picousd(upstream)
    return None if stated is None or provider_charge is None else stated + provider_charge


def ticks_in_picousd(value: object) -> int | None:
    """None if it can't be a price."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    picousd = value * _PICOUSD_PER_TICK
    return picousd if picousd <= _USD_MAX * _PICOUSD_PER_USD else None
