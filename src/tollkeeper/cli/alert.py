"""`tollkeeper alert`: what is wrong now."""

from collections.abc import Mapping
from typing import Any

from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Listing
from tollkeeper.services.use_cases import Services
from tollkeeper.storage.alerts import StandingAlert

# What a subject may have, in the order in which people see it.
_PARTS = ("organization_id", "project_id", "key_id", "period", "backend")

app = noun_app("What is wrong now: raised alerts.")


@service_command(app, "list", example="tollkeeper alert list")
async def alert_list(services: Services) -> Listing:
    """List the raised alerts, oldest first. A running gateway raises and clears them."""
    alerts = await services.alerts.alert_list()
    names = await services.names.names_of(
        value for alert in alerts for value in alert.subject.values()
    )
    return Listing(
        [_view(alert, names) for alert in alerts],
        columns=("raised_at", "kind", "level", "about", "detail"),
        optional=("level",),
    )


def _view(alert: StandingAlert, names: Mapping[str, str]) -> dict[str, Any]:
    """`about` is the subject for people: with names instead of ids, the owner before what it owns."""
    sorted_parts = sorted(alert.subject.items(), key=lambda part: _PARTS.index(part[0]))
    return {
        "raised_at": alert.raised_at,
        "kind": alert.kind,
        "level": alert.level,
        "about": ", ".join(names.get(value, value) for _, value in sorted_parts),
        "detail": alert.detail,
        "subject": dict(alert.subject),
    }
