"""`tollkeeper ledger months`, `close`, `export` and `drop`. Closing makes a month immutable and
stores its totals; an exported month's rows can be dropped."""

import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from tollkeeper.core.errors import NotFound, StateConflict
from tollkeeper.core.months import Month, month_of_text
from tollkeeper.entry.commands.command import Invocation, run_with_services
from tollkeeper.entry.commands.output import Listing, Record, confirm
from tollkeeper.money.months.service import Export, LedgerMonth

if TYPE_CHECKING:
    from tollkeeper.setup.services import Services

MonthArgument = Annotated[
    str, typer.Argument(metavar="MONTH", help="A month, such as 2026-09.", show_default=False)
]
_GZIP = ".gz"


def ledger_months(invocation: Invocation) -> Listing:
    """List the months of the ledger and their states."""
    months = run_with_services(invocation, lambda services: services.months.ledger_months())
    return Listing(
        [_view(month) for month in months],
        columns=("month", "state", "reservations", "closed_at", "exported_to"),
    )


def ledger_close(
    invocation: Invocation,
    month: Annotated[
        str | None,
        typer.Argument(
            metavar="MONTH",
            help="A month, such as 2026-09.",
            show_default="the oldest open month",
        ),
    ] = None,
) -> Record:
    """Close a past month: make it immutable and store its totals."""
    requested = None if month is None else month_of_text(month)
    closed = run_with_services(invocation, lambda services: services.months.ledger_close(requested))
    note = (
        "Store the digest outside the database too: it covers this month and all months closed "
        "before it."
    )
    return Record(_view(closed), note)


def ledger_export(
    invocation: Invocation,
    month: MonthArgument,
    to: Annotated[
        Path,
        typer.Option(
            "--to", metavar="FILE", help="Write to this new file; the suffix .gz compresses it."
        ),
    ],
) -> Record:
    """Write the rows of a closed month to a CSV file.

    The file's digest is stored with the totals of the month."""
    requested = month_of_text(month)
    if to.exists():
        raise StateConflict(f"{to} exists already.")
    if not to.parent.is_dir():
        raise NotFound(f"There is no folder {to.parent}.")

    async def run(services: "Services") -> LedgerMonth:
        with _whole_file(to) as file:
            exported: Export = await services.months.ledger_export(requested, file.write)
        return await services.months.ledger_exported(exported, to.name)

    return Record(_view(run_with_services(invocation, run)))


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """Under a temporary name, and renamed when complete and on disk. Deleted if writing fails."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as raw:
            if path.suffix == _GZIP:
                # A fixed name and time: the same rows always give the same bytes.
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed:
                    yield cast("BinaryIO", compressed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def ledger_drop(
    invocation: Invocation,
    month: MonthArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> Record:
    """Delete the rows of a closed and exported month.

    The month must also be proven: `ledger verify` has checked that its totals are the sums of its rows.
    The totals stay."""
    requested = month_of_text(month)
    if not yes:
        checked = run_with_services(
            invocation, lambda services: services.months.ledger_check_drop(requested)
        )
        _confirm(requested, checked)
    dropped = run_with_services(invocation, lambda services: services.months.ledger_drop(requested))
    return Record(_view(dropped))


def _confirm(month: Month, found: LedgerMonth) -> None:
    """Raises StateConflict if the answer is no."""
    assert found.close is not None, "ledger_check_drop accepts only a closed month"
    assert found.exported is not None, "ledger_check_drop accepts only an exported month"
    question = (
        f"{found.close.reservations} reservations of {month} are in {found.exported.file_name}, "
        "and will be in that file only. Drop them?"
    )
    if not confirm(question):
        raise StateConflict("Nothing was dropped: confirm the question, or give --yes.")


def _view(found: LedgerMonth) -> dict[str, object]:
    close, exported = found.close, found.exported
    return {
        "month": str(found.month),
        "state": found.state,
        "reservations": None if close is None else close.reservations,
        "closed_at": None if close is None else int(close.closed_at.timestamp()),
        "digest": None if close is None else close.digest.hex(),
        "proven_at": None if found.proven is None else int(found.proven.done_at.timestamp()),
        "exported_at": None if exported is None else int(exported.done_at.timestamp()),
        "exported_to": None if exported is None else exported.file_name,
        "csv_sha256": None
        if exported is None or exported.csv_digest is None
        else exported.csv_digest.hex(),
        "dropped_at": None if found.dropped is None else int(found.dropped.done_at.timestamp()),
    }
