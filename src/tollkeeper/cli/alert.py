"""`tollkeeper alert`: what is wrong now."""

from typing import Any

from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.output import Listing
from tollkeeper.services.use_cases import Services
from tollkeeper.storage.alerts import StandingAlert

app = noun_app("What is wrong now: raised alerts.")


@service_command(app, "list", example="tollkeeper alert list")
async def alert_list(services: Services) -> Listing:
    """List the raised alerts, oldest first. A running gateway raises and clears them."""
    return Listing(
        [_view(alert) for alert in await services.alerts.alert_list()],
        columns=("raised_at", "kind", "level", "about", "detail"),
        optional=("level",),
    )


def _view(alert: StandingAlert) -> dict[str, Any]:
    """`about` is the subject for people, with the name of the organization in the place of its id."""
    shown = dict(alert.subject)
    if alert.organization_name is not None:
        shown["organization_id"] = alert.organization_name
    return {
        "raised_at": alert.raised_at,
        "kind": alert.kind,
        "level": alert.level,
        "about": ", ".join(shown.values()),
        "detail": alert.detail,
        "subject": dict(alert.subject),
    }
