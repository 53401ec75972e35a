"""Shows current alerts with their age, and for each alert the section of the runbook that explains
what to do."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.context import Console, console_of
from tollkeeper.console.rendering import render
from tollkeeper.reports.alerts.rule import AlertKind, StandingAlert

# The section of docs/runbook.md for each kind of alert.
SECTIONS = {
    AlertKind.CAP: "Cap used",
    AlertKind.CREDIT: "Credit used",
    AlertKind.NEGATIVE_BALANCE: "Negative balance",
    AlertKind.STOPPED: "Stopped organization",
    AlertKind.UNSETTLED: "Unsettled calls",
    AlertKind.BACKEND_DOWN: "Backend down",
    AlertKind.LEDGER_DIFFERENCE: "Ledger difference",
    AlertKind.USAGE_REPORT: "Usage that cannot be true",
    AlertKind.EXCEEDED_HOLD: "Overage",
    AlertKind.POLICY_DRIFT: "Values of a policy have drifted",
    AlertKind.DATABASE_UNREACHABLE: "Database unreachable",
    AlertKind.DATABASE_REFUSES_CONNECTIONS: "Database unreachable",
    AlertKind.DATABASE_NOT_WRITABLE: "Database not writable",
    AlertKind.OLD_DATABASE_SERVER: "Old database server",
    AlertKind.NOT_READY: "Not ready",
}


@dataclass(frozen=True, slots=True)
class ShownAlert:
    kind: str
    level: int
    about: str
    detail: str
    raised_at: int
    section: str
    # The path of the console page about the problem; empty if there is none.
    page: str


async def show(request: Request) -> Response:
    console = console_of(request)
    return render(
        request,
        "alerts.html",
        nav="alerts",
        title="Alerts",
        alerts=await shown_alerts(console),
        webhook=bool(console.settings.alerts.webhook.url),
    )


async def shown_alerts(console: Console) -> list[ShownAlert]:
    """Returns the alerts from the database and from the gateway on this machine, oldest first."""
    stored = await console.services.alerts.alert_list()
    alerts = [*stored, *await console.machine.gateway_alerts()]
    names = await console.services.names.names_of(
        value for alert in alerts for value in alert.subject.values()
    )
    shown = [_shown(alert, names) for alert in alerts]
    return sorted(shown, key=lambda alert: alert.raised_at)


def _shown(alert: StandingAlert, names: Mapping[str, str]) -> ShownAlert:
    return ShownAlert(
        kind=alert.kind,
        level=alert.level,
        about=alert.about(names),
        detail=alert.detail,
        raised_at=alert.raised_at,
        section=SECTIONS[alert.kind],
        page=_page(alert),
    )


def _page(alert: StandingAlert) -> str:
    if alert.kind is AlertKind.UNSETTLED:
        return "/unsettled"
    if "organization_id" in alert.subject:
        return f"/organizations/{alert.subject['organization_id']}"
    return "/backends" if "backend" in alert.subject else ""
