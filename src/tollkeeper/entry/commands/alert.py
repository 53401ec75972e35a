"""`tollkeeper alert`: the current alerts in the database and in the memory of this machine's
gateway."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tollkeeper.core.errors import Unavailable
from tollkeeper.entry.commands.command import Invocation, command, noun_app, run_with_services
from tollkeeper.entry.commands.output import Listing
from tollkeeper.entry.replica_probe import ask_operator_listener
from tollkeeper.reports.alerts.rule import StandingAlert
from tollkeeper.setup.settings import Settings

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

_ANSWER_TIMEOUT_S = 2.0

app = noun_app("List the current alerts.")


@command(app, "list", example="tollkeeper alert list")
def alert_list(invocation: Invocation) -> Listing:
    """List the current alerts, oldest first.

    A running gateway raises an alert when a problem begins, and clears it when the problem ends."""
    gateway_alerts = asyncio.run(alerts_of_gateway(invocation.settings()))
    note = ""
    try:
        rows = run_with_services(invocation, _stored_alerts)
    except Unavailable as exc:
        if gateway_alerts is None:
            raise
        rows = []
        note = f"The list has only alerts of the gateway on this machine. {exc.message}"
    rows += [_view(alert, {}) for alert in gateway_alerts or []]
    return Listing(
        sorted(rows, key=lambda row: int(row["raised_at"])),
        columns=("raised_at", "kind", "level", "about", "detail"),
        optional=("level",),
        note=note,
    )


async def _stored_alerts(services: "Services") -> list[dict[str, Any]]:
    alerts = await services.alerts.alert_list()
    names = await services.names.names_of(
        value for alert in alerts for value in alert.subject.values()
    )
    return [_view(alert, names) for alert in alerts]


async def alerts_of_gateway(settings: Settings) -> list[StandingAlert] | None:
    """In its memory, so it answers even if the database is down. None if no gateway answers."""
    operator = settings.operator
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            answer = await ask_operator_listener(operator.host, operator.port, "/alerts")
        return msgspec.convert(answer.get("data"), list[StandingAlert])
    except (OSError, TimeoutError, ValueError, msgspec.ValidationError):
        return None


def _view(alert: StandingAlert, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "raised_at": alert.raised_at,
        "kind": alert.kind,
        "level": alert.level,
        "about": alert.about(names),
        "detail": alert.detail,
        "subject": dict(alert.subject),
    }
