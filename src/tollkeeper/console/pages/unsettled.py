"""Lists unsettled calls, whose cost is unknown, with the reasons and ages. Resolves one call, or
many calls at once."""

from datetime import datetime
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.actions.action import Question
from tollkeeper.console.amounts import exact_usd, number
from tollkeeper.console.changes import answer_form, done
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, Refused, optional, request_id
from tollkeeper.console.rendering import duration, render
from tollkeeper.core.errors import InvalidRequest, StateConflict
from tollkeeper.money.unsettled.bulk_resolution import BulkAction
from tollkeeper.money.unsettled.store import UnsettledSelection
from tollkeeper.setup.calls import unsettled_rule
from tollkeeper.setup.services import Services

_SHOWN_MAX = 200


async def show(request: Request, refused: Refused | None = None) -> Response:
    console = console_of(request)
    services = console.services
    backend = optional(request.query_params, "backend")
    models = _models_of_backend(services, backend)
    backlog = await services.bulk_resolution.ledger_backlog(older_than_s=0, models=models)
    entries = await services.reconciliation.ledger_unsettled(models=models, limit=_SHOWN_MAX)
    names = {one.id: one.name for one in await services.organizations.organization_list()}
    return render(
        request,
        "unsettled.html",
        nav="unsettled",
        title="Unsettled",
        refused=refused,
        backlog=backlog,
        entries=entries,
        shown_max=_SHOWN_MAX,
        backends=sorted(
            {name for model in services.catalog.catalog.models for name in model.backends}
        ),
        backend=backend,
        names=names,
        rule=unsettled_rule(console.settings),
    )


async def resolve(request: Request) -> Response:
    services = console_of(request).services
    reservation: UUID = request_id(request.path_params["reservation"])

    async def ask(form: Form) -> Question:
        amount = _amount(form)
        entry = (await services.traffic.call_story(reservation)).entry
        hold = exact_usd(entry.hold_picousd)
        facts = {"Call": reservation, "Model": entry.model, "Hold": hold}
        if amount is None:
            return Question(
                f"Release the hold of {hold}?",
                "The organization pays nothing for the call. This cannot be undone.",
                f"Release {hold}",
                facts=facts,
            )
        warning = (
            " This is more than twice the hold." if amount > 2 * (entry.hold_picousd or 0) else ""
        )
        return Question(
            f"Settle the call with {exact_usd(amount)}?",
            f"The organization pays this amount for the call.{warning} This cannot be undone.",
            f"Charge {exact_usd(amount)}",
            facts=facts,
        )

    async def handle(form: Form) -> Response:
        amount = _amount(form)
        entry = await services.reconciliation.ledger_resolve(
            reservation, settle_picousd=amount, confirmed=True
        )
        next_page = (
            f"/activity/{reservation}" if form.text("from", default="") == "call" else "/unsettled"
        )
        if amount is None:
            return done(
                *(request, next_page),
                f"The call is released: {exact_usd(entry.hold_picousd)} of its hold was given back.",
            )
        return done(request, next_page, f"The call is settled: {exact_usd(amount)} was charged.")

    return await answer_form(request, handle, show, ask=ask, back="/unsettled")


async def recover(request: Request) -> Response:
    async def handle(_form: Form) -> Response:
        await console_of(request).services.recovery.ledger_recover()
        return done(request, "/unsettled", "The holds of dead processes are marked as unsettled.")

    return await answer_form(request, handle, show)


async def resolve_all(request: Request) -> Response:
    services = console_of(request).services

    async def ask(form: Form) -> Question:
        hours = form.required_integer("older_than_hours")
        if hours < 0:
            raise InvalidRequest("The age must be 0 hours or more.", param="older_than_hours")
        settles = _action(form) is BulkAction.SETTLE_HOLD
        backlog = await services.bulk_resolution.ledger_backlog(
            older_than_s=hours * 3600, models=_models_of_form(services, form)
        )
        if not backlog.reservations:
            raise StateConflict("No call has been unsettled for that long.")
        marked_before = backlog.selection.marked_before
        assert marked_before is not None, "`ledger_backlog` sets it if `older_than_s` is given"
        calls, hold = number(backlog.reservations), exact_usd(backlog.hold_picousd)
        return Question(
            f"Charge {hold} for {calls} calls?" if settles else f"Release {calls} calls?",
            "Each call is charged its whole hold. This cannot be undone."
            if settles
            else f"Nothing is charged, and {hold} is given back. This cannot be undone.",
            f"Charge {hold}" if settles else f"Release {hold}",
            facts={
                "Calls": calls,
                "Held for them": hold,
                "Oldest": duration(max(reason.oldest_age_s for reason in backlog.reasons)),
            },
            extra_fields={"marked_before": marked_before.isoformat()},
        )

    async def handle(form: Form) -> Response:
        selection = UnsettledSelection(_marked_before(form), models=_models_of_form(services, form))
        action = _action(form)
        resolved = await services.bulk_resolution.ledger_resolve_all(selection, action)
        amount = exact_usd(resolved.hold_picousd)
        return done(
            *(request, "/unsettled"),
            f"The unsettled calls are settled: {amount} was charged."
            if action is BulkAction.SETTLE_HOLD
            else f"The unsettled calls are released: {amount} was given back.",
        )

    return await answer_form(request, handle, show, ask=ask, back="/unsettled")


def _amount(form: Form) -> int | None:
    """Returns the amount to charge; None if the hold is to be released."""
    how = form.text("how")
    if how not in ("settle", "release"):
        raise InvalidRequest("Settle with an amount, or release.", param="how")
    return form.picousd("amount") if how == "settle" else None


def _marked_before(form: Form) -> datetime:
    """Returns the time limit from the question that the operator confirmed. Calls that became
    unsettled after that time are not resolved, because the question did not include them."""
    try:
        return datetime.fromisoformat(form.text("marked_before"))
    except ValueError:
        raise InvalidRequest(
            "The confirmation is missing or invalid: send the form again.", param="marked_before"
        ) from None


def _action(form: Form) -> BulkAction:
    try:
        return BulkAction(form.text("how"))
    except ValueError:
        raise InvalidRequest("Settle the holds, or release them.", param="how") from None


def _models_of_form(services: Services, form: Form) -> tuple[str, ...] | None:
    return _models_of_backend(services, form.text("backend", default="") or None)


def _models_of_backend(services: Services, backend: str | None) -> tuple[str, ...] | None:
    if backend is None:
        return None
    models = services.catalog.catalog.models
    matching = tuple(model.id for model in models if backend in model.backends)
    if not matching:
        raise InvalidRequest(f"No model is on the backend {backend[:80]!r}.", param="backend")
    return matching
