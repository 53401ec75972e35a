"""Compares a provider's bill, which the operator uploads, with the ledger."""

import io
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from tollkeeper.console.changes import answer_form
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, Refused
from tollkeeper.console.rendering import render
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.reports.bills.service import (
    BillComparison,
    Figure,
    bill_columns,
    day_number,
    named_values,
    plain_number,
    read_bill,
    shown_day,
    tolerance_of,
)
from tollkeeper.reports.bills.store import Tolerance

_SHOWN_MAX = 200


async def show(
    request: Request,
    refused: Refused | None = None,
    *,
    found: BillComparison | None = None,
    filled: Mapping[str, str] | None = None,
) -> Response:
    console = console_of(request)
    return render(
        request,
        "reconcile.html",
        nav="reconcile",
        title="Reconcile",
        refused=refused,
        filled=filled,
        backends=[backend.name for backend in console.settings.backends],
        figures=list(Figure),
        found=found,
        shown_max=_SHOWN_MAX,
        shown_day=shown_day,
        plain_number=plain_number,
    )


async def compare(request: Request) -> Response:
    async def handle(form: Form) -> Response:
        services = console_of(request).services
        try:
            lines = io.StringIO((await form.file("file")).decode(), newline="")
        except UnicodeDecodeError:
            raise InvalidRequest("The file is not UTF-8 text.", param="file") from None
        models = form.text("models", default="")
        tolerance = form.text("tolerance", default="")
        days = [form.text(name, default="") for name in ("since", "until")]
        first, last = (day_number(day) if day else None for day in days)
        found = await services.bill_reconciliation.ledger_reconcile(
            form.text("backend"),
            read_bill(lines, bill_columns(named_values(form.text("columns"), "columns"))),
            catalog=services.catalog.catalog,
            names=named_values(models, "models") if models else {},
            tolerance=tolerance_of(tolerance) if tolerance else Tolerance(),
            days=(first, last),
            reported=bool(form.text("reported", default="")),
        )
        return await show(request, found=found, filled=form.filled)

    return await answer_form(request, handle, show)
