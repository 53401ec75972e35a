"""Compares an ended call's cost with the expected cost, for metrics and alerts."""

from collections.abc import Callable

import structlog

from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.pricing import Bounds
from tollkeeper.domain.usage import Usage
from tollkeeper.services.calls import metrics
from tollkeeper.services.calls.tab import Tab

_log = structlog.get_logger("tollkeeper.calls")


_ABSURD = "The backend reported usage that cannot be true; the calls stay unsettled."
_EXCESSIVE = "The backend reported more usage than the model's declared context holds."


def check_bill(tab: Tab, on_misreport: Callable[[str, str], None]) -> None:
    """Counts inconsistent reports, overage, and backend prices that differ from ours. Calls
    `on_misreport` with a backend whose report is inconsistent, and the reason."""
    meter, hold, cost = tab.meter, tab.hold, tab.cost_picousd
    if meter is None or hold is None:
        return
    backend, usage = tab.backend, meter.usage
    if usage is not None:
        bounds = hold.bounds
        is_above = False
        if usage.prompt_tokens > bounds.prompt_tokens:
            is_above = True
            metrics.count_usage_above_bound(backend, "prompt")
        if usage.completion_tokens > bounds.choices * bounds.output_tokens_each:
            is_above = True
            metrics.count_usage_above_bound(backend, "output")
        if is_above and _exceeds_context(usage, bounds, tab.call.model.context_length):
            # It is charged, but it contradicts the model's declaration.
            metrics.count_excessive_usage(backend)
            on_misreport(backend, _EXCESSIVE)
    elif meter.reported_nonsense:
        metrics.count_absurd_usage(backend)
        on_misreport(backend, _ABSURD)
    if cost is not None:
        if cost > hold.hold_picousd:
            _report_overage(tab, hold.hold_picousd, cost)
        # Only for a settled call: an unsettled one has no cost that could differ.
        if tab.reported_cost_picousd is not None:
            ours = cost - tab.verdict_picousd
            metrics.count_reported_cost(backend, tab.reported_cost_picousd, ours)


def _exceeds_context(usage: Usage, bounds: Bounds, context: int) -> bool:
    # There may be several prompts, or one that was read again after each search.
    prompt_max = max(context * bounds.prompts, bounds.prompt_tokens)
    return usage.prompt_tokens > prompt_max or usage.completion_tokens > context * bounds.choices


def _report_overage(tab: Tab, hold: int, cost: int) -> None:
    metrics.count_overage(tab.backend, cost - hold)
    call = tab.call
    _log.warning(
        "a call cost more than its hold",
        request_id=call.request_id,
        organization_id=str(call.organization_id),
        project_id=str(call.project_id),
        model=call.model.id,
        backend=tab.backend,
        hold_usd=usd_from_picousd(hold),
        cost_usd=usd_from_picousd(cost),
        overage_usd=usd_from_picousd(cost - hold),
    )
