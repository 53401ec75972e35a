"""`tollkeeper ledger`: verifies the ledger, and resolves unsettled reservations by hand."""

from typing import Annotated
from uuid import UUID

import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.cli.amounts import amount_picousd
from tollkeeper.cli.answers import Listing, Record, printable
from tollkeeper.cli.command import noun_app, service_command
from tollkeeper.cli.report import Report, report_command
from tollkeeper.domain.errors import NotFound
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.ledger.reconciliation import Difference
from tollkeeper.services.use_cases import Services
from tollkeeper.storage.reservations import ReservationEntry

app = noun_app("The ledger: its invariants, and unsettled holds.")


@report_command(app, "verify")
async def ledger_verify(services: Services) -> Report:
    """Recompute every balance and check every invariant. Fails if one does not hold."""
    found = await services.reconciliation.ledger_verify()
    differences = [
        {
            "invariant": difference.invariant,
            "subject": difference.subject,
            "detail": difference.detail,
        }
        for difference in found
    ]
    return Report(
        {"ok": not found, "differences": differences},
        _verdict(found),
        refusal=f"The books are wrong in {len(found)} places." if found else "",
    )


@service_command(app, "recover")
async def ledger_recover(services: Services) -> Record:
    """Mark the holds of dead processes as unsettled. Holds of live processes are not changed."""
    recovered = await services.recovery.ledger_recover()
    return Record({"processes": recovered.processes, "reservations": recovered.reservations})


@service_command(app, "unsettled")
async def ledger_unsettled(services: Services) -> Listing:
    """List unsettled reservations, oldest first: the cost of these calls is unknown."""
    found = await services.reconciliation.ledger_unsettled()
    return Listing(
        [_view(entry) for entry in found],
        columns=("id", "held_at", "organization_id", "model", "hold", "reason"),
    )


@service_command(app, "resolve")
async def ledger_resolve(
    services: Services,
    reservation: Annotated[
        str,
        typer.Argument(
            metavar="RESERVATION",
            help="The id of the reservation, which is the id of its request.",
            show_default=False,
        ),
    ],
    settle: Annotated[
        int | None,
        typer.Option(
            metavar="USD", help="What the call cost.", parser=amount_picousd, show_default=False
        ),
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="The call cost nothing.")] = False,
) -> Record:
    """Settle or release an unsettled reservation by hand, once."""
    if (settle is not None) is release:
        raise typer.BadParameter("Give either --settle USD or --release.")
    found = await services.reconciliation.ledger_resolve(
        _reservation_id(reservation), settle_picousd=settle
    )
    return Record(_view(found))


def _reservation_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no reservation {text}.") from None


def _view(entry: ReservationEntry) -> dict[str, object]:
    cost = entry.cost_picousd
    return {
        "id": entry.id,
        "organization_id": entry.organization_id,
        "project_id": entry.project_id,
        "api_key_id": entry.key_id,
        "model": entry.model,
        "held_at": entry.held_at,
        "hold": usd_from_picousd(entry.hold_picousd),
        "cost": None if cost is None else usd_from_picousd(cost),
        "settlement": entry.status,
        "reason": entry.reason,
        "resolved_by": entry.resolved_by,
    }


def _verdict(found: list[Difference]) -> RenderableType:
    if not found:
        return Text("Every invariant holds.", style="green")
    table = Table("invariant", "about", "difference", box=SIMPLE_HEAD, pad_edge=False)
    for difference in found:
        table.add_row(
            difference.invariant,
            Text(printable(difference.subject)),
            Text(printable(difference.detail)),
        )
    return table
