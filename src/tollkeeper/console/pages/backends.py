"""Shows the backends with their settings and latencies. For each replica (one address of a
backend), shows whether the console can reach the replica, and the replica's state as each gateway
process sees it."""

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import console_of
from tollkeeper.console.forms import RANGES_S, time_range
from tollkeeper.console.rendering import render
from tollkeeper.console.replica_views import ReplicaViews, traffic_by_replica


async def show(request: Request) -> Response:
    console = console_of(request)
    services = console.services
    time = time_range(request.query_params, services.clock())
    report = await services.traffic.traffic_report(time)
    replicas = await console.last_probe()
    processes = await services.replica_reports.replica_report_list()
    names = [backend.name for backend in console.settings.backends]
    return render(
        request,
        "backends.html",
        nav="backends",
        title="Backends",
        backends=console.settings.backends,
        replicas=replicas,
        views=ReplicaViews(processes, services.clock()),
        traffic=traffic_by_replica(report.backends, replicas),
        report=report,
        configured={
            name: [
                origin
                for origin in console.origins
                if origin.name.startswith(f"backends[{name}].") and origin.value
            ]
            for name in names
        },
        models={
            name: [model.id for model in services.catalog.catalog.models if name in model.backends]
            for name in names
        },
        judge=console.settings.judge,
        ranges=RANGES_S,
        range=request.query_params.get("range", "24h"),
    )
