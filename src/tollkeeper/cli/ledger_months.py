"""Implements `tollkeeper ledger months`, `close`, `export` and `drop`."""

import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from tollkeeper.cli.command import Invocation, run_with_services
from tollkeeper.cli.output import Listing, Record, confirm
from tollkeeper.domain.errors import NotFound, StateConflict
from tollkeeper.domain.months import Month, month_of_text
from tollkeeper.services.ledger.months import Export, LedgerMonth
from tollkeeper.services.use_cases import Services

MonthArgument = Annotated[
    str, typer.Argument(metavar="MONTH", help="As in 2026-09.", show_default=False)
]
_GZIP = ".gz"


def ledger_months(invocation: Invocation) -> Listing:
    """List the months of the ledger and what was done with each."""
    found = run_with_services(invocation, lambda services: services.months.ledger_months())
    return Listing(
        [_view(month) for month in found],
        columns=("month", "state", "reservations", "closed_at", "exported_to"),
    )


def ledger_close(
    invocation: Invocation,
    month: Annotated[
        str | None,
        typer.Argument(
            metavar="MONTH", help="As in 2026-09.", show_default="the next one to be closed"
        ),
    ] = None,
) -> Record:
    """Make a month that is over immutable, and write its totals."""
    requested = None if month is None else month_of_text(month)
    found = run_with_services(invocation, lambda services: services.months.ledger_close(requested))
    note = "Keep the digest elsewhere too: it covers this month and all closed before it."
    return Record(_view(found), note)


def ledger_export(
    invocation: Invocation,
    month: MonthArgument,
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="FILE.csv, or FILE.csv.gz to compress it.")
    ],
) -> Record:
    """Write the rows of a closed month to a CSV file, and note its digest in the close."""
    requested = month_of_text(month)
    if to.exists():
        raise StateConflict(f"{to} exists already.")
    if not to.parent.is_dir():
        raise NotFound(f"There is no folder {to.parent}.")

    async def run(services: Services) -> LedgerMonth:
        with _whole_file(to) as file:
            exported: Export = await services.months.ledger_export(requested, file.write)
        return await services.months.ledger_exported(exported, to.name)

    return Record(_view(run_with_services(invocation, run)))


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that gets its name only when it is completely written and on disk."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as raw:
            if path.suffix == _GZIP:
                # A fixed name and time make the same rows the same bytes.
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> Record:
    """Drop the rows of a month that is closed, proven and exported. Its totals stay."""
    requested = month_of_text(month)
    if not yes:
        found = run_with_services(
            invocation, lambda services: services.months.ledger_check_drop(requested)
        )
        _confirm(requested, found)
    dropped = run_with_services(invocation, lambda services: services.months.ledger_drop(requested))
    return Record(_view(dropped))


def _confirm(month: Month, found: LedgerMonth) -> None:
    assert found.close is not None, "only a closed month gets here"
    assert found.exported is not None, "only an exported month gets here"
    question = (
        f"{found.close.reservations} reservations of {month} are in {found.exported.file_name}, "
        "and will be in that file only. Drop them?"
    )
    if not confirm(question):
        raise StateConflict("Nothing was dropped: confirm it, or give --yes.")


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
