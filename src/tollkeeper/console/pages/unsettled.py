"""Unsettled calls: what nobody knows, why and since when; resolve one, or all of a backend."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.bootstrap.services import unsettled_rule
from tollkeeper.console.changes import Refused, answer_form, done
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, optional, request_id
from tollkeeper.console.rendering import render
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.services.ledger.bulk_resolution import BulkAction
from tollkeeper.services.use_cases import Services

_SHOWN_MAX = 200


async def show(request: Request, refused: Refused | None = None) -> Response:
    console = console_of(request)
    services = console.services
    backend = optional(request.query_params, "backend")
    backlog = await services.bulk_resolution.ledger_backlog(
        older_than_s=0, models=_models_of(services, backend)
    )
    entries = await services.reconciliation.ledger_unsettled(limit=_SHOWN_MAX)
    models = _models_of(services, backend)
    names = {one.id: one.name for one in await services.organizations.organization_list()}
    return render(
        request,
        "unsettled.html",
        nav="unsettled",
        title="Unsettled",
        refused=refused,
        backlog=backlog,
        entries=[entry for entry in entries if models is None or entry.model in models],
        shown_max=_SHOWN_MAX,
        backends=sorted(
            {name for model in services.catalog.catalog.models for name in model.backends}
        ),
        backend=backend,
        names=names,
        rule=unsettled_rule(console.settings),
    )


async def resolve(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services = console_of(request).services
        reservation: UUID = request_id(request.path_params["reservation"])
        how = form.text("how")
        if how not in ("settle", "release"):
            raise InvalidRequest("Settle with an amount, or release.", param="how")
        amount = form.picousd("amount") if how == "settle" else None
        await services.reconciliation.ledger_resolve(reservation, settle_picousd=amount)
        there = form.text("from", default="")
        return done(f"/activity/{reservation}" if there == "call" else "/unsettled", "resolved")

    return await answer_form(request, handle, show)


async def resolve_all(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services = console_of(request).services
        backend = form.text("backend", default="") or None
        hours = form.required_integer("older_than_hours")
        if hours < 0:
            raise InvalidRequest("Older than is a number of hours.", param="older_than_hours")
        action = _action(form)
        backlog = await services.bulk_resolution.ledger_backlog(
            older_than_s=hours * 3600, models=_models_of(services, backend)
        )
        await services.bulk_resolution.ledger_resolve_all(backlog.selection, action)
        return done("/unsettled", "all-resolved")

    return await answer_form(request, handle, show)


def _action(form: Form) -> BulkAction:
    try:
        return BulkAction(form.text("how"))
    except ValueError:
        raise InvalidRequest("Settle the holds, or release them.", param="how") from None


def _models_of(services: Services, backend: str | None) -> tuple[str, ...] | None:
    if backend is None:
        return None
    models = services.catalog.catalog.models
    found = tuple(model.id for model in models if backend in model.backends)
    if not found:
        raise InvalidRequest(f"No model is on the backend {backend[:80]!r}.", param="backend")
    return found
