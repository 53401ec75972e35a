"""Closes months of the ledger, sends their rows as files, marks months as exported, and drops
(removes) their rows."""

import gzip
import tempfile
from contextlib import ExitStack
from functools import partial

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tollkeeper.actions.action import OWNER, Question
from tollkeeper.console.amounts import number
from tollkeeper.console.changes import FormAction, act, answer_form, done
from tollkeeper.console.context import console_of
from tollkeeper.console.forms import Form, Refused
from tollkeeper.console.rendering import render
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.months import Month, month_of_text
from tollkeeper.money.months.service import LedgerMonth
from tollkeeper.setup.services import Services

_EXPORT_DEADLINE_S = 1800.0
_PIECE_BYTES = 65_536


async def show(request: Request, refused: Refused | None = None) -> Response:
    return render(
        request,
        "months.html",
        nav="months",
        title="Months",
        refused=refused,
        months=await console_of(request).services.months.ledger_months(),
    )


async def close(request: Request) -> Response:
    months = console_of(request).services.months

    async def ask(_form: Form) -> Question:
        month = await months.ledger_check_close()
        return Question(
            f"Close {month}?",
            "Its rows become immutable, and their totals are written. This cannot be undone.",
            "Close month",
            # The form names the month. If another operator has closed this month in the meantime, the
            # confirmation is refused, and does not close the next month.
            extra_fields={"month": str(month)},
        )

    async def handle(form: Form) -> Response:
        await months.ledger_close(month_of_text(form.text("month")))
        return done(
            *(request, "/months"),
            "The month is closed. Store a copy of its digest outside of this database.",
        )

    return await answer_form(request, handle, show, ask=ask, back="/months")


async def download(request: Request) -> Response:
    """Sends the rows of a closed month as one file, like `tollkeeper ledger export`. The whole file
    is written before its first byte is sent, so that a failed export never leaves a partial file in
    the browser."""
    console = console_of(request)
    month = month_of_text(request.path_params["month"])
    with ExitStack() as stack:
        raw = stack.enter_context(tempfile.TemporaryFile())
        # The gzip header gets an empty name and a fixed time, so that the same rows always give the
        # same bytes.
        async with console.exclusive_run(_EXPORT_DEADLINE_S):
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
                await console.services.months.ledger_export(month, file.write)
        raw.seek(0)
        # Keeps the file open; the background task closes it after the response.
        stack.pop_all()
    return StreamingResponse(
        iter(partial(raw.read, _PIECE_BYTES), b""),
        media_type="application/gzip",
        headers={"Content-Disposition": f'attachment; filename="ledger-{month}.csv.gz"'},
        background=BackgroundTask(raw.close),
    )


async def change(request: Request) -> Response:
    month = month_of_text(request.path_params["month"])
    return await act(request, ACTIONS, month, "/months", show)


async def _mark_exported(services: Services, month: Month, form: Form) -> LedgerMonth:
    """Marks the month as exported. The operator enters the digest of the uncompressed file, which
    proves that the operator has the whole file."""
    digest = form.text("sha256").lower()
    export = await services.months.ledger_export(month, lambda _: None)
    if digest != export.digest.hex():
        raise InvalidRequest(
            "This is not the SHA-256 of the uncompressed file: download it again.", param="sha256"
        )
    return await services.months.ledger_exported(export, form.text("file_name"))


async def _ask_about_drop(services: Services, month: Month, _: Form) -> Question:
    ledger_month = await services.months.ledger_check_drop(month)
    assert ledger_month.close is not None, "only a closed month can be dropped"
    assert ledger_month.exported is not None, "only an exported month can be dropped"
    return Question(
        f"Drop {number(ledger_month.close.reservations)} reservations of {month}?",
        f"They will be in {ledger_month.exported.file_name} only. Their totals stay. This cannot be undone.",
        "Drop the rows",
    )


ACTIONS: dict[str, FormAction[Month]] = {
    "exported": FormAction(OWNER, "The month is marked as exported.", _mark_exported),
    "drop": FormAction(
        OWNER,
        "The rows of the month are dropped.",
        lambda services, month, _: services.months.ledger_drop(month),
        _ask_about_drop,
    ),
}
