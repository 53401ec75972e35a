"""Compares what an ended call cost with what was expected of it, for metrics and alert lines."""

from collections.abc import Callable

import structlog

from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.calls import metrics
from tollkeeper.services.calls.running import RunningCall
from tollkeeper.services.ledger.admission import Reservation, Settlement

_log = structlog.get_logger("tollkeeper.calls")


_ABSURD = "The backend reported usage that cannot be true; the calls stay unsettled."
_EXCESSIVE = "The backend reported more usage than the model's declared context holds."


def check_bill(running: RunningCall, on_misreport: Callable[[str, str], None]) -> None:
    """Counts reports that do not fit, overage, and prices of the backend that differ from ours.
    `on_misreport` hears of a backend whose report does not fit, and why."""
    meter, reservation, settlement = running.meter, running.reservation, running.settlement
    if meter is None or reservation is None:
        return
    backend, usage = running.backend, meter.usage
    if usage is not None:
        bounds, context = reservation.hold.bounds, running.call.model.context_length
        if usage.prompt_tokens > bounds.prompt_tokens:
            metrics.count_usage_above_bound(backend, "prompt")
        if usage.completion_tokens > bounds.choices * bounds.output_tokens_each:
            metrics.count_usage_above_bound(backend, "output")
        # Of several prompts, or of one that was read again after each search.
        prompt_max = max(context * bounds.prompts, bounds.prompt_tokens)
        if usage.prompt_tokens > prompt_max or usage.completion_tokens > context * bounds.choices:
            # It is charged, but it does not fit what is declared of the model.
            metrics.count_excessive_usage(backend)
            on_misreport(backend, _EXCESSIVE)
    elif meter.reported_nonsense:
        metrics.count_absurd_usage(backend)
        on_misreport(backend, _ABSURD)
    if settlement is not None:
        overage = settlement.cost_picousd - reservation.hold_picousd
        if overage > 0:
            _report_overage(running, settlement, reservation, overage)
        # Only of a settled call: what is unsettled has no cost that could differ.
        reported = None if meter.report is None else meter.report.cost_picousd
        if reported is not None:
            metrics.count_reported_cost(backend, reported, settlement.cost_picousd)


def _report_overage(
    running: RunningCall, settlement: Settlement, reservation: Reservation, overage: int
) -> None:
    backend = running.backend
    metrics.count_overage(backend, overage)
    call = running.call
    _log.warning(
        "a call cost more than its hold",
        request_id=call.request_id,
        organization_id=str(call.organization_id),
        project_id=str(call.project_id),
        model=call.model.id,
        backend=backend,
        hold_usd=usd_from_picousd(reservation.hold_picousd),
        cost_usd=usd_from_picousd(settlement.cost_picousd),
        overage_usd=usd_from_picousd(overage),
    )
