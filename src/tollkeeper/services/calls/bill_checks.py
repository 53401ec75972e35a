"""Compares the usage and cost of an ended call with its hold (the credit reserved for it), with the
model's context, and with the cost that the backend reports. Differences are counted in metrics.
Usage that cannot be true or exceeds the model's context also causes an alert."""

from collections.abc import Callable

import structlog

from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.pricing import Bounds
from tollkeeper.domain.usage import Usage
from tollkeeper.services.calls import metrics
from tollkeeper.services.calls.tab import Tab

_log = structlog.get_logger("tollkeeper.calls")


_IMPOSSIBLE_USAGE = "The backend reported usage that cannot be true; the calls stay unsettled."
_EXCESSIVE_USAGE = "The backend reported more usage than the model's declared context holds."


def check_usage_and_cost(tab: Tab, on_misreport: Callable[[str, str], None]) -> None:
    """Updates the metrics for wrong usage reports, for overage (cost beyond the hold), and for
    reported costs that differ from the gateway's cost. Calls `on_misreport` with the name of the
    backend and the reason if the usage report cannot be true or exceeds the model's context."""
    hold, cost = tab.hold, tab.cost_picousd
    if hold is None:
        return
    backend, usage, bounds = tab.backend or tab.call.model.backend, tab.meter.usage, hold.bounds
    if usage is None:
        if tab.meter.reported_impossible_usage:
            metrics.count_impossible_usage(backend)
            on_misreport(backend, _IMPOSSIBLE_USAGE)
    elif (
        usage.prompt_tokens > bounds.prompt_tokens
        or usage.completion_tokens > bounds.choices * bounds.output_tokens_each
    ):
        if usage.prompt_tokens > bounds.prompt_tokens:
            metrics.count_usage_above_bound(backend, "prompt")
        if usage.completion_tokens > bounds.choices * bounds.output_tokens_each:
            metrics.count_usage_above_bound(backend, "output")
        if _exceeds_context(usage, bounds, tab.call.model.context_length):
            # The usage is charged, although it contradicts the model's declared context length.
            metrics.count_excessive_usage(backend)
            on_misreport(backend, _EXCESSIVE_USAGE)
    if cost is not None:
        if cost > hold.hold_picousd:
            _report_overage(tab, backend, hold.hold_picousd, cost)
        # Only a settled call has a cost that can be compared with the reported cost.
        if tab.reported_cost_picousd is not None:
            charged_by_gateway = cost - tab.verdict_picousd
            metrics.count_reported_cost(backend, tab.reported_cost_picousd, charged_by_gateway)


def _exceeds_context(usage: Usage, bounds: Bounds, context: int) -> bool:
    # The prompt may have been sent several times, and the model may have read it again after each
    # web search.
    prompt_max = max(context * bounds.prompts, bounds.prompt_tokens)
    return usage.prompt_tokens > prompt_max or usage.completion_tokens > context * bounds.choices


def _report_overage(tab: Tab, backend: str, hold: int, cost: int) -> None:
    metrics.count_overage(backend, cost - hold)
    call = tab.call
    _log.warning(
        "a call cost more than its hold",
        request_id=call.request_id,
        organization_id=str(call.organization_id),
        project_id=str(call.project_id),
        model=call.model.id,
        backend=backend,
        hold_usd=usd_from_picousd(hold),
        cost_usd=usd_from_picousd(cost),
        overage_usd=usd_from_picousd(cost - hold),
    )
