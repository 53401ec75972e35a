"""`tollkeeper ledger`: verifies the ledger, settles (charges) or releases unsettled reservations,
and closes months."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.views import ReservationEntry
from tollkeeper.entry.commands.amounts import amount_picousd, seconds_of
from tollkeeper.entry.commands.bulk_resolve import BulkRequest, resolve_all
from tollkeeper.entry.commands.command import (
    Invocation,
    command,
    noun_app,
    run_with_services,
    service_command,
)
from tollkeeper.entry.commands.ledger_bill import ledger_reconcile
from tollkeeper.entry.commands.ledger_log import ledger_compare_log
from tollkeeper.entry.commands.ledger_months import (
    ledger_close,
    ledger_drop,
    ledger_export,
    ledger_months,
)
from tollkeeper.entry.commands.output import Listing, Record, confirm, printable
from tollkeeper.entry.commands.progress import progress
from tollkeeper.entry.commands.report import Report, show_report
from tollkeeper.money.unsettled.bulk_resolution import BulkAction
from tollkeeper.money.unsettled.service import FarAboveHold
from tollkeeper.money.verification.service import Difference

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

app = noun_app("Verify the ledger, resolve unsettled calls, close months.")
command(app, "months", example="tollkeeper ledger months")(ledger_months)
command(app, "close", example="tollkeeper ledger close 2026-10")(ledger_close)
command(app, "export", example="tollkeeper ledger export 2026-10 --to october.csv.gz")(
    ledger_export
)
command(app, "drop", example="tollkeeper ledger drop 2026-10")(ledger_drop)
command(
    app,
    "reconcile",
    example="tollkeeper ledger reconcile cluster oct.csv --columns day=Day,cost=USD",
)(ledger_reconcile)
command(app, "compare-log", example="tollkeeper ledger compare-log gateway-*.log.gz")(
    ledger_compare_log
)


@command(app, "verify", example="tollkeeper ledger verify")
def ledger_verify(
    invocation: Invocation,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also check the rows of closed months that an earlier run has checked."
        ),
    ] = False,
) -> None:
    """Recompute every balance and check every invariant.

    The command fails if a balance or an invariant is wrong."""
    with progress("Verifying", quiet=invocation.as_json) as report_progress:
        differences = run_with_services(
            invocation,
            lambda services: services.reconciliation.ledger_verify(
                full=full, on_progress=report_progress
            ),
        )
    rows = [
        {
            "invariant": difference.invariant,
            "subject": difference.subject,
            "detail": difference.detail,
        }
        for difference in differences
    ]
    report = Report({"ok": not differences, "differences": rows}, _differences_table(differences))
    show_report(report, as_json=invocation.as_json)
    if differences:
        raise StateConflict(f"The ledger is wrong in {len(differences)} places.")


@service_command(app, "recover", example="tollkeeper ledger recover")
async def ledger_recover(services: "Services") -> Record:
    """Mark the holds of dead processes as unsettled.

    Holds of live processes are not changed."""
    recovered = await services.recovery.ledger_recover()
    leased = await services.recovery.leased_holds()
    note = ""
    if leased.lease_ends_in_s is not None:
        note = (
            f"{leased.reservations} more holds belong to processes whose lease has not expired. If such "
            f"a process is dead, its holds can be recovered in {leased.lease_ends_in_s} s at the latest."
        )
    return Record(
        {
            "processes": recovered.processes,
            "reservations": recovered.reservations,
            "leased_processes": leased.processes,
            "leased_reservations": leased.reservations,
            "lease_ends_in_s": leased.lease_ends_in_s,
        },
        note=note,
    )


@service_command(app, "unsettled", example="tollkeeper ledger unsettled")
async def ledger_unsettled(services: "Services") -> Listing:
    """List unsettled reservations, oldest first.

    A reservation is unsettled if the cost of its call is unknown."""
    entries = await services.reconciliation.ledger_unsettled()
    return Listing(
        [_view(entry) for entry in entries],
        columns=("id", "held_at", "organization_id", "model", "hold", "reason"),
        short_ids=("organization_id",),
        optional=("reason", "organization_id", "model"),
    )


ReservationArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RESERVATION",
        help="The id of the reservation, which is also the id of its request.",
        show_default=False,
    ),
]
OlderThanOption = Annotated[
    int | None,
    typer.Option(
        metavar="TIME",
        help="With --all: only calls that are unsettled for longer than this (90s, 30m, 24h, 7d).",
        parser=seconds_of,
        show_default=False,
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --all: only calls of the models that the settings assign to this backend.",
    ),
]


@command(app, "resolve", example="tollkeeper ledger resolve --all --older-than 24h --release")
def ledger_resolve(
    invocation: Invocation,
    reservation: ReservationArgument = None,
    settle: Annotated[
        int | None,
        typer.Option(
            metavar="USD",
            help="Charge this cost for the call.",
            parser=amount_picousd,
            show_default=False,
        ),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Charge nothing and release the hold.")
    ] = False,
    settle_hold: Annotated[
        bool, typer.Option("--settle-hold", help="With --all: charge the whole hold of each call.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Resolve all unsettled reservations that match.")
    ] = False,
    older_than: OlderThanOption = None,
    backend: BackendOption = None,
    organization: Annotated[
        str | None, typer.Option(metavar="ORG", help="With --all: only calls of this organization.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --all: show how many calls match, and change nothing."
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="With --settle: accept a cost of more than twice the hold without asking."
        ),
    ] = False,
) -> Record | None:
    """Settle or release unsettled reservations.

    Give the id of one reservation, or --all with --older-than for many. A reservation can be resolved
    only once."""
    if every:
        if settle is not None:
            raise typer.BadParameter("--settle USD cannot be combined with --all.")
        if reservation is not None or older_than is None:
            raise typer.BadParameter("--all needs --older-than TIME and no RESERVATION.")
        action = _bulk_action(settle_hold=settle_hold, release=release)
        request = BulkRequest(action, older_than, backend, organization, dry_run)
        show_report(resolve_all(invocation, request), as_json=invocation.as_json)
        return None
    if reservation is None:
        raise typer.BadParameter("Give a RESERVATION, or --all with --older-than TIME.")
    if settle_hold or dry_run or (older_than, backend, organization) != (None, None, None):
        raise typer.BadParameter(
            "--settle-hold, --older-than, --backend, --organization and --dry-run need --all."
        )
    if (settle is not None) is release:
        raise typer.BadParameter("Give either --settle USD or --release.")
    reservation_id = _reservation_id(reservation)
    try:
        entry = _resolve(invocation, reservation_id, settle, confirmed=yes)
    except FarAboveHold as exc:
        if not confirm(f"{exc.message} Settle it?"):
            raise
        entry = _resolve(invocation, reservation_id, settle, confirmed=True)
    return Record(_view(entry))


def _resolve(
    invocation: Invocation, reservation_id: UUID, settle: int | None, *, confirmed: bool
) -> ReservationEntry:
    """In picousd; releases if `settle` is None."""
    return run_with_services(
        invocation,
        lambda services: services.reconciliation.ledger_resolve(
            reservation_id, settle_picousd=settle, confirmed=confirmed
        ),
    )


def _bulk_action(*, settle_hold: bool, release: bool) -> BulkAction:
    if settle_hold is release:
        raise typer.BadParameter("Give either --settle-hold or --release.")
    return BulkAction.SETTLE_HOLD if settle_hold else BulkAction.RELEASE


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


def _differences_table(differences: list[Difference]) -> RenderableType:
    if not differences:
        return Text("Every invariant holds.", style="green")
    table = Table("invariant", "about", "difference", box=SIMPLE_HEAD, pad_edge=False)
    for difference in differences:
        table.add_row(
            difference.invariant,
            Text(printable(difference.subject)),
            Text(printable(difference.detail)),
        )
    return table
