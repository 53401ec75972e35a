"""`tollkeeper ledger resolve --all`: charges or releases the whole holds of many unsettled
reservations."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tollkeeper.core.catalog import Catalog
from tollkeeper.core.errors import NotFound
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.views import ReasonTotal
from tollkeeper.entry.commands.command import Invocation, run_with_services
from tollkeeper.entry.commands.output import printable
from tollkeeper.entry.commands.progress import progress
from tollkeeper.entry.commands.report import Report
from tollkeeper.money.unsettled.bulk_resolution import Backlog, BulkAction, Resolved

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

# Reasons are free text, so there may be many. The report lists the most frequent ones, and adds up
# the rest.
_REASONS_MAX = 20
_OTHER_REASONS = "(other reasons)"
_RESULT = {BulkAction.SETTLE_HOLD: "settled", BulkAction.RELEASE: "released"}


@dataclass(frozen=True, slots=True)
class BulkRequest:
    action: BulkAction
    older_than_s: int
    backend: str | None
    organization: str | None
    dry_run: bool


def resolve_all(invocation: Invocation, request: BulkRequest) -> Report:
    async def run(services: "Services") -> Report:
        return await _resolve_all(services, request, quiet=invocation.as_json)

    return run_with_services(invocation, run)


async def _resolve_all(services: "Services", request: BulkRequest, *, quiet: bool) -> Report:
    organization_id = None
    if request.organization is not None:
        organization_id = await services.names.organization_named(request.organization)
        # Raises if it doesn't exist.
        await services.organizations.organization_show(organization_id)
    backlog = await services.bulk_resolution.ledger_backlog(
        older_than_s=request.older_than_s,
        organization_id=organization_id,
        models=_models_of(services.catalog.catalog, request.backend),
    )
    if request.dry_run:
        return _report(request, backlog, None)
    with progress("Resolving", quiet=quiet or not backlog.reservations) as report_progress:
        resolved = await services.bulk_resolution.ledger_resolve_all(
            backlog.selection,
            request.action,
            on_progress=lambda done: report_progress(done, backlog.reservations),
        )
    return _report(request, backlog, resolved)


def _models_of(catalog: Catalog, backend: str | None) -> tuple[str, ...] | None:
    """None (all) if `backend` is None. Raises NotFound if no model uses it. A reservation doesn't
    name its backend, so they're selected by model."""
    if backend is None:
        return None
    models = tuple(model.id for model in catalog.models if backend in model.backends)
    if not models:
        names = (
            ", ".join(sorted({name for model in catalog.models for name in model.backends}))
            or "none"
        )
        raise NotFound(
            f"No model in the settings uses the backend {backend}. These backends are used: {names}."
        )
    return models


def _report(request: BulkRequest, backlog: Backlog, resolved: Resolved | None) -> Report:
    """`resolved` is None for a dry run."""
    reasons = [
        {
            "reason": total.reason,
            "reservations": total.reservations,
            "hold": usd_from_picousd(total.hold_picousd),
        }
        for total in _listed_reasons(backlog.reasons)
    ]
    content: dict[str, Any] = {
        "dry_run": request.dry_run,
        "action": request.action.value,
        "found": {
            "reservations": backlog.reservations,
            "hold": usd_from_picousd(backlog.hold_picousd),
            "reasons": reasons,
        },
        "resolved": None
        if resolved is None
        else {
            "reservations": resolved.reservations,
            "hold": usd_from_picousd(resolved.hold_picousd),
        },
    }
    return Report(content, _picture(request, backlog, resolved, reasons))


def _listed_reasons(reasons: tuple[ReasonTotal, ...]) -> list[ReasonTotal]:
    listed, rest = list(reasons[:_REASONS_MAX]), reasons[_REASONS_MAX:]
    if rest:
        others = ReasonTotal(
            _OTHER_REASONS,
            sum(total.reservations for total in rest),
            sum(total.hold_picousd for total in rest),
            max(total.oldest_age_s for total in rest),
        )
        listed.append(others)
    return listed


def _picture(
    request: BulkRequest,
    backlog: Backlog,
    resolved: Resolved | None,
    reasons: list[dict[str, Any]],
) -> RenderableType:
    if not reasons:
        return Text("No unsettled reservation matches.")
    table = Table("reservations", "hold", "reason", box=SIMPLE_HEAD, pad_edge=False)
    for row in reasons:
        cells = (str(row["reservations"]), row["hold"], Text(printable(row["reason"])))
        table.add_row(*cells)
    result = _RESULT[request.action]
    if resolved is None:
        amount = usd_from_picousd(backlog.hold_picousd)
        line = f"{backlog.reservations} reservations would be {result}; their holds are {amount} USD in total."
    else:
        amount = usd_from_picousd(resolved.hold_picousd)
        line = f"{resolved.reservations} reservations were {result}; their holds are {amount} USD in total."
    return Group(table, Text(line))
