"""Shows the first page: alerts, traffic, latencies, replicas, and the money that is held or
unsettled."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.charts import traffic_chart
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import RANGES_S, Form, Refused, time_range
from tollkeeper.console.gateway_call import gateway_url
from tollkeeper.console.pages.alerts import shown_alerts
from tollkeeper.console.rendering import percentile, render
from tollkeeper.console.replica_views import ReplicaViews
from tollkeeper.reports.traffic.rule import BackendTraffic
from tollkeeper.reports.traffic.service import TrafficReport

# The shown percentiles: p50, p95 and p99.
_SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class LatencyRow:
    name: str
    traffic: Sequence[BackendTraffic]
    duration_ms: tuple[float | None, ...]
    first_piece_ms: tuple[float | None, ...]


async def show(request: Request, refused: Refused | None = None) -> Response:
    console = console_of(request)
    services = console.services
    time = time_range(request.query_params, services.clock())
    report = await services.traffic.traffic_report(time)
    money = await services.ledger_overview.ledger_overview()
    replicas = await console.last_probe()
    requests = sum(found.requests for found in report.steps)
    return render(
        request,
        "overview.html",
        nav="overview",
        title="Overview",
        refused=refused,
        ranges=RANGES_S,
        range=request.query_params.get("range", "24h"),
        requests=requests,
        client_errors=sum(found.requests for found in report.steps if 400 <= found.status < 500),
        failures=sum(found.requests for found in report.steps if found.status >= 500),
        prompt_tokens=sum(found.prompt_tokens for found in report.backends),
        completion_tokens=sum(found.completion_tokens for found in report.backends),
        cached_tokens=sum(found.cached_tokens for found in report.backends),
        total=_row("all", report, report.backends, None),
        rows=[
            _row(model, report, found, model) for model, found in sorted(report.by_model.items())
        ],
        overhead_us=[percentile(report.latencies("overhead"), share) for share in _SHARES],
        money=money,
        alerts=await shown_alerts(console),
        unassigned_payments=await services.payments.payment_check_unassigned(),
        replicas=replicas,
        views=ReplicaViews(await services.replica_reports.replica_report_list(), services.clock()),
        chart=traffic_chart(report.steps, time),
        gateway_url=gateway_url(console.settings),
        has_organizations=bool(requests) or bool(await services.organizations.organization_list()),
    )


async def verify(request: Request) -> Response:
    async def handle(_form: Form) -> Response:
        await console_of(request).services.reconciliation.ledger_verify()
        return done(request, "/", "The ledger was verified.")

    return await answer_form(request, handle, show)


def _row(
    name: str, report: TrafficReport, traffic: Sequence[BackendTraffic], model: str | None
) -> LatencyRow:
    whole = report.latencies("duration", model=model)
    first = report.latencies("first_piece", model=model)
    return LatencyRow(
        name,
        traffic,
        tuple(percentile(whole, share) for share in _SHARES),
        tuple(percentile(first, share) for share in _SHARES),
    )
