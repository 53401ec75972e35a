"""Partitions, closes, exports and drops of ledger months. Closed: rows are immutable, totals
stored. Proven: `ledger verify` found the totals to be the sums of the rows. Exported: rows are in a
file. Dropped: rows are deleted, totals stay. You can export before it's proven."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from tollkeeper.core.errors import StateConflict
from tollkeeper.core.months import Month, month_of_day, month_of_id
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.database.database import Connection, Contention, Database
from tollkeeper.money.months import export as ledger_export
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.close_digest import close_digest
from tollkeeper.money.months.store import Close, Step
from tollkeeper.money.unsettled.bulk_resolution import BulkResolution
from tollkeeper.money.verification import store as verification
from tollkeeper.tenants.audit.service import record_change

MONTHS_AHEAD = 2
# From a month's end to its earliest close. An id has the time when its call began, so by then none
# can begin with an id of that month, even by a slow clock.
CLOSE_AFTER_S = 86_400
_UNRESOLVED_NAMED_MAX = 5
_DROP_TRIES = 10
_DROP_PAUSE_S = 1.0
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class LedgerMonth:
    """None means not done yet."""

    month: Month
    close: Close | None
    proven: Step | None
    exported: Step | None
    dropped: Step | None

    @property
    def state(self) -> str:
        """The last step of the module's docstring, or "open"."""
        for step in (self.dropped, self.exported, self.proven):
            if step is not None:
                return step.step
        return "open" if self.close is None else "closed"


@dataclass(frozen=True, slots=True)
class Export:
    """The SHA-256 of the uncompressed text, and the rows without the header."""

    month: Month
    digest: bytes
    rows: int


class LedgerMonths:
    def __init__(self, database: Database, clock: Clock, bulk_resolution: BulkResolution) -> None:
        self._database = database
        self._clock = clock
        self._bulk_resolution = bulk_resolution

    async def keep_months(self) -> None:
        """Does nothing while another process changes months or verifies the ledger."""
        current = month_at(self._clock())
        async with self._database.transaction() as connection:
            if not await ledger_months.try_lock_months(connection):
                return
            existing = await ledger_months.find_months(connection)
            closed = {close.month for close in await ledger_months.find_closes(connection)}
            await ledger_months.limit_lock_waits(connection)
            for ahead in range(MONTHS_AHEAD + 1):
                month = current.plus(ahead)
                if month not in existing and month not in closed:
                    await ledger_months.add_month(connection, month)

    async def ledger_months(self) -> list[LedgerMonth]:
        async with self._database.autocommit() as connection:
            return await _find_all(connection)

    async def ledger_check_close(self) -> Month:
        """StateConflict if it ended less than `CLOSE_AFTER_S` ago."""
        async with self._database.autocommit() as connection:
            month, _ = await _next_to_close(connection, None)
        return month

    async def ledger_close(self, month: Month | None = None) -> LedgerMonth:
        """The oldest open one; `month` can only confirm it. If this raises, nothing has changed."""
        async with self._database.transaction() as connection:
            await _lock(connection)
            month, previous = await _next_to_close(connection, month)
            if month not in await ledger_months.find_months(connection):
                await ledger_months.add_month(connection, month)
            await verification.allow_long_statements(connection)
            await ledger_months.seal_month(connection, month)
            await _check_resolved(connection, month)
            reservations = await ledger_months.write_totals(connection, month)
            digest = await close_digest(
                connection, month, reservations, None if previous is None else previous.digest
            )
            await ledger_months.write_close(
                connection,
                month,
                None if previous is None else previous.month,
                reservations,
                digest,
            )
            totals = {"reservations": reservations, "digest": digest.hex()}
            await record_change(connection, None, "ledger_close", "month", month, after=totals)
            return await _find(connection, month)

    async def ledger_export(self, month: Month, write: Callable[[bytes], object]) -> Export:
        """Passes the CSV to `write` in parts, then raises StateConflict if the rows' number is
        wrong or the text differs from the first export. Counts only after `ledger_exported`."""
        ledger_month = await self._require_closed_with_rows(month)
        digest, row_counter = hashlib.sha256(), _RowCounter()
        async with self._preventing_month_changes() as connection, connection.transaction():
            await verification.allow_long_statements(connection)
            async for piece in ledger_export.stream_csv(connection, month):
                digest.update(piece)
                row_counter.read(piece)
                write(piece)
        export = Export(month, digest.digest(), row_counter.count)
        assert ledger_month.close is not None, "the month is closed"
        if export.rows != ledger_month.close.reservations:
            raise StateConflict(
                f"The month {month} was closed with {ledger_month.close.reservations} reservations, and "
                f"{export.rows} were read. Run `ledger verify --full`."
            )
        if ledger_month.exported is not None and ledger_month.exported.csv_digest != export.digest:
            raise StateConflict(
                f"This export of {month} differs from the first one, {ledger_month.exported.file_name}. "
                "Run `ledger verify --full`."
            )
        return export

    async def ledger_exported(self, export: Export, file_name: str) -> LedgerMonth:
        """The caller has safely stored the file."""
        async with self._database.transaction() as connection:
            is_first = await ledger_months.write_step(
                connection,
                export.month,
                "exported",
                csv_digest=export.digest,
                csv_rows=export.rows,
                file_name=file_name,
            )
            if is_first:
                file = {"file_name": file_name, "rows": export.rows, "sha256": export.digest.hex()}
                await record_change(
                    connection, None, "ledger_exported", "month", export.month, after=file
                )
            return await _find(connection, export.month)

    async def ledger_check_drop(self, month: Month) -> LedgerMonth:
        ledger_month = await self._require_closed_with_rows(month)
        if ledger_month.proven is None:
            raise StateConflict(f"The month {month} is not proven yet. Run `ledger verify` first.")
        if ledger_month.exported is None:
            raise StateConflict(
                f"The month {month} is not exported yet. Run `ledger export {month} --to FILE`."
            )
        return ledger_month

    async def ledger_drop(self, month: Month) -> LedgerMonth:
        """Must be closed, proven and exported; its totals stay."""
        for attempt in range(1, _DROP_TRIES + 1):
            await self.ledger_check_drop(month)
            try:
                return await self._drop(month)
            except Contention:
                if attempt == _DROP_TRIES:
                    raise
                await asyncio.sleep(_DROP_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _drop(self, month: Month) -> LedgerMonth:
        async with self._database.autocommit() as connection:
            unfolded = await ledger_months.find_unfolded(connection, month)
        # First: folding needs the month's marks of once unsettled calls, which the drop deletes.
        await self._bulk_resolution.fold(unfolded)
        async with self._database.transaction() as connection:
            await _lock(connection)
            await ledger_months.limit_lock_waits(connection)
            await ledger_months.drop_month(connection, month)
            await ledger_months.write_step(connection, month, "dropped")
            dropped = await _find(connection, month)
            assert dropped.close is not None, "only a closed month is dropped"
            rows = {"reservations": dropped.close.reservations}
            await record_change(connection, None, "ledger_drop", "month", month, before=rows)
            return dropped

    async def _require_closed_with_rows(self, month: Month) -> LedgerMonth:
        async with self._database.autocommit() as connection:
            ledger_month = await _find(connection, month)
        if ledger_month.close is None:
            raise StateConflict(f"The month {month} is not closed. Run `ledger close {month}`.")
        if ledger_month.dropped is not None:
            raise StateConflict(dropped_message(ledger_month))
        return ledger_month

    @asynccontextmanager
    async def _preventing_month_changes(self) -> AsyncIterator[Connection]:
        async with (
            self._database.autocommit() as connection,
            ledger_months.preventing_month_changes(connection) as protected,
        ):
            if not protected:
                raise months_in_use()
            yield connection


async def find_dropped(connection: Connection, identity: UUID) -> LedgerMonth | None:
    ledger_month = await _find(connection, month_of_id(identity))
    return None if ledger_month.dropped is None else ledger_month


def dropped_message(ledger_month: LedgerMonth) -> str:
    assert ledger_month.exported is not None, "a month is exported before it is dropped"
    digest = (ledger_month.exported.csv_digest or b"").hex()
    return (
        f"The month {ledger_month.month} was exported to {ledger_month.exported.file_name} "
        f"(SHA-256 {digest}) and dropped: its reservations are in that file only."
    )


def months_in_use() -> StateConflict:
    return StateConflict(
        "Another command works on the months of the ledger (verify, close, export or drop). "
        "Try again when it has ended."
    )


def month_at(now_s: int) -> Month:
    return month_of_day(now_s // _DAY_S)


async def _lock(connection: Connection) -> None:
    if not await ledger_months.try_lock_months(connection):
        raise months_in_use()


async def _next_to_close(
    connection: Connection, requested: Month | None
) -> tuple[Month, Close | None]:
    """With the close before it, if any. Raises if it isn't the requested one, or can't be closed
    yet."""
    closes = await ledger_months.find_closes(connection)
    previous = closes[-1] if closes else None
    if previous is None:
        partitions = await ledger_months.find_months(connection)
        current = await ledger_months.read_current(connection)
        expected = min([current, *partitions])
    else:
        expected = previous.month.next
    if requested is not None and requested < expected:
        raise StateConflict(
            f"The month {requested} is closed already."
            if closes and requested >= closes[0].month
            else f"The first month of the ledger is {expected}."
        )
    if requested is not None and requested > expected:
        raise StateConflict(f"Months are closed in order: close {expected} first.")
    if expected >= await ledger_months.read_current(connection, seconds_ago=CLOSE_AFTER_S):
        raise StateConflict(f"The month {expected} can be closed when it has been over for a day.")
    return expected, previous


async def _check_resolved(connection: Connection, month: Month) -> None:
    count = await ledger_months.count_unresolved(connection, month)
    if not count:
        return
    named = await ledger_months.find_unresolved(connection, month, _UNRESOLVED_NAMED_MAX)
    names = ", ".join(
        f"{reservation.id} ({'unsettled' if reservation.unsettled else 'held'})"
        for reservation in named
    )
    more = f" and {count - len(named)} more" if count > len(named) else ""
    raise StateConflict(
        f"The month {month} has {count} reservations that are not resolved: {names}{more}. "
        "`ledger recover` and `ledger resolve` end them."
    )


async def _find(connection: Connection, month: Month) -> LedgerMonth:
    close = await ledger_months.find_close(connection, month)
    return _with_steps(month, close, await ledger_months.find_steps(connection))


async def _find_all(connection: Connection) -> list[LedgerMonth]:
    closes = {close.month: close for close in await ledger_months.find_closes(connection)}
    months = {*closes, *await ledger_months.find_months(connection)}
    steps = await ledger_months.find_steps(connection)
    return [_with_steps(month, closes.get(month), steps) for month in sorted(months)]


def _with_steps(
    month: Month, close: Close | None, steps: dict[tuple[Month, str], Step]
) -> LedgerMonth:
    done = [steps.get((month, step)) for step in ("proven", "exported", "dropped")]
    return LedgerMonth(month, close, *done)


class _RowCounter:
    """In a CSV text in parts. A line break inside quotes doesn't end a row."""

    def __init__(self) -> None:
        self._ends = 0
        self._quoted = False

    @property
    def count(self) -> int:
        """Without the header."""
        return self._ends - 1

    def read(self, piece: bytes) -> None:
        for part in piece.split(b'"'):
            if not self._quoted:
                self._ends += part.count(b"\n")
            self._quoted = not self._quoted
        # Toggled once too often: n parts are separated by n - 1 quotes.
        self._quoted = not self._quoted
