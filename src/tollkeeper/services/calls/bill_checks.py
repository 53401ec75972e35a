"""Compares what an ended call cost with what was expected of it, for metrics and alert lines."""

import structlog

from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.calls import metrics
from tollkeeper.services.calls.running import RunningCall

_log = structlog.get_logger("tollkeeper.calls")


def check_bill(running: RunningCall) -> None:
    """Counts reports that do not fit, overage, and prices of the backend that differ from ours."""
    meter, backend = running.meter, running.backend
    if meter is None:
        return
    if meter.reported_nonsense:
        metrics.count_absurd_usage(backend)
    if meter.exceeds_context:
        metrics.count_excessive_usage(backend)
    _check_bounds(running, backend)
    _check_hold(running, backend)
    _check_price(running, backend)


def _check_bounds(running: RunningCall, backend: str) -> None:
    meter, reservation = running.meter, running.reservation
    usage = None if meter is None else meter.usage
    if usage is None or reservation is None:
        return
    bounds = reservation.hold.bounds
    if usage.prompt_tokens > bounds.prompt_tokens:
        metrics.count_usage_above_bound(backend, "prompt")
    if usage.completion_tokens > bounds.choices * bounds.output_tokens_each:
        metrics.count_usage_above_bound(backend, "output")


def _check_hold(running: RunningCall, backend: str) -> None:
    settlement, reservation = running.settlement, running.reservation
    if settlement is None or reservation is None:
        return
    overage = settlement.cost_picousd - reservation.hold_picousd
    if overage <= 0:
        return
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


def _check_price(running: RunningCall, backend: str) -> None:
    """Only a settled call: what is unsettled has no cost that could differ."""
    meter, settlement = running.meter, running.settlement
    if settlement is None or meter is None or meter.report is None:
        return
    reported = meter.report.cost_picousd
    if reported is not None:
        metrics.count_reported_cost(backend, reported, settlement.cost_picousd)
