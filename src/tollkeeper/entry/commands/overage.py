"""`tollkeeper overage`: bounds how far a balance may fall below zero, and shows models whose calls
may exceed their holds. Beyond its bound, an organization is stopped until an operator clears
that."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.entry.commands.amounts import amount_picousd
from tollkeeper.entry.commands.arguments import OrganizationArgument
from tollkeeper.entry.commands.command import noun_app, service_command
from tollkeeper.entry.commands.output import Listing, Record

if TYPE_CHECKING:
    from tollkeeper.money.credit.service import OverageUse
    from tollkeeper.setup.services import Services

app = noun_app("Limit how far an organization's balance may fall below 0.")

_DEFAULT = "default"


def _bound(text: str) -> int | str:
    return _DEFAULT if text == _DEFAULT else amount_picousd(text)


@service_command(app, "set", example="tollkeeper overage set Acme 5")
async def overage_set(
    services: "Services",
    organization: OrganizationArgument,
    # Any, because Typer doesn't support `int | "default"`.
    bound: Annotated[
        Any,
        typer.Argument(
            metavar="USD|default",
            help="A decimal amount in USD, or `default` for the setting ledger.overage_bound_usd.",
            parser=_bound,
            show_default=False,
        ),
    ],
) -> Record:
    """Set how far the balance may fall below zero.

    If the balance falls further, no call of the organization is admitted until you run `overage
    clear`."""
    organization_id = await services.names.organization_named(organization)
    bound_picousd = None if bound == _DEFAULT else bound
    return _record(
        organization_id, await services.accounts.overage_set(organization_id, bound_picousd)
    )


@service_command(app, "clear", example="tollkeeper overage clear Acme")
async def overage_clear(services: "Services", organization: OrganizationArgument) -> Record:
    """Let a stopped organization make calls again.

    The organization's balance must be within the bound."""
    organization_id = await services.names.organization_named(organization)
    return _record(organization_id, await services.accounts.overage_clear(organization_id))


@service_command(app, "show", example="tollkeeper overage show Acme")
async def overage_show(services: "Services", organization: OrganizationArgument) -> Record:
    """Show an organization's balance, overage and bound.

    The output also says whether the organization's calls are stopped."""
    organization_id = await services.names.organization_named(organization)
    return _record(organization_id, await services.accounts.overage_show(organization_id))


@service_command(app, "models", example="tollkeeper overage models")
async def overage_models(services: "Services") -> Listing:
    """List the models whose calls may cost more than their holds.

    Some models are declared to search or to add context on their own. Others have lately exceeded
    their holds; `expected` is what the next calls may cost beyond theirs. It halves every day."""
    now = services.clock()
    rows: list[dict[str, Any]] = [
        {"model": model.id, "backend": backend, "reason": "declared"}
        for model in services.catalog.catalog.models
        if model.token_bounds.unbounded
        for backend in model.backends
    ]
    rows += [
        {
            "model": case.model,
            "backend": case.backend,
            "reason": "observed",
            "hold": usd_from_picousd(case.hold_picousd),
            "cost": usd_from_picousd(case.cost_picousd),
            "expected": f"{case.percent(now)} %",
            "observed_at": case.at,
        }
        for case in await services.excesses.overage_models()
    ]
    columns = ("model", "backend", "reason", "hold", "cost", "expected", "observed_at")
    return Listing(rows, columns=columns, optional=("observed_at", "reason"))


@service_command(app, "forget", example="tollkeeper overage forget example/chat-small")
async def overage_forget(
    services: "Services",
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's id.")],
    backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what was observed at this backend."),
    ] = None,
) -> Record:
    """Forget that calls to a model have exceeded their holds.

    Do this after you have corrected the model's settings. Running gateways follow within
    seconds."""
    await services.excesses.overage_forget(model, backend)
    return Record({"model": model, "backend": backend, "forgotten": True})


def _record(organization: OrganizationId, use: "OverageUse") -> Record:
    """In USD. `overage` is of all calls so far."""
    return Record(
        {
            "organization_id": organization,
            "balance": usd_from_picousd(use.balance_picousd),
            "overage": usd_from_picousd(use.overage_picousd),
            "bound": None if use.bound_picousd is None else usd_from_picousd(use.bound_picousd),
            "source": "default" if use.is_default else "organization",
            "stopped": use.stopped,
        }
    )
