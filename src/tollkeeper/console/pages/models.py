"""Shows the model catalogue: all models with their prices, spend, features and latencies."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import console_of
from tollkeeper.console.forms import RANGES_S, time_range
from tollkeeper.console.months_compared import month_start
from tollkeeper.console.rendering import render
from tollkeeper.core.reports import days_of


async def show(request: Request) -> Response:
    services = console_of(request).services
    now = services.clock()
    time = time_range(request.query_params, now)
    report = await services.traffic.traffic_report(time)
    models = services.catalog.catalog.models
    this_month = days_of(month_start(now), now + 1)
    spend = await services.ledger_overview.costs_by_model(this_month)
    listed = {model.id for model in models}
    return render(
        request,
        "models.html",
        nav="models",
        title="Models",
        models=models,
        spend=spend,
        # The spend of models that are no longer in the catalogue.
        other_spend=sum(amount for model, amount in spend.items() if model not in listed),
        traffic=report.by_model,
        report=report,
        ranges=RANGES_S,
        range=request.query_params.get("range", "24h"),
    )
