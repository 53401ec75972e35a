"""Shows the model catalogue: all models with their prices, features and latencies."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import console_of
from tollkeeper.console.forms import RANGES_S, time_range
from tollkeeper.console.rendering import render


async def show(request: Request) -> Response:
    services = console_of(request).services
    time = time_range(request.query_params, services.clock())
    report = await services.traffic.traffic_report(time)
    return render(
        request,
        "models.html",
        nav="models",
        title="Models",
        models=services.catalog.catalog.models,
        traffic=report.by_model,
        report=report,
        ranges=RANGES_S,
        range=request.query_params.get("range", "24h"),
    )
