"""Verifies the ledger in slices, each a short transaction. An organization's rows and its account
are compared in one snapshot, so it's exact during live traffic; single rows are checked partition
by partition. A close is proven once, before the rows are dropped: totals against rows. From then on
only the digest of the stored totals is checked, and these are used."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from tollkeeper.core.months import FIRST_ID, LAST_ID, Month
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.months import close_proof
from tollkeeper.money.months import store as ledger_months
from tollkeeper.money.months.close_digest import close_digest
from tollkeeper.money.months.service import months_in_use
from tollkeeper.money.months.store import Close
from tollkeeper.money.verification import store as verification
from tollkeeper.money.verification.store import Ages, Slice

ORGANIZATIONS_PER_SLICE = 50
# Others are only counted.
DIFFERENCES_MAX = 10_000
CLOSES_ARE_UNCHANGED = "closed months are as they were closed"
_LEFT_OUT = "further differences"


EVERY_HOURS = 24
# Pauses four times as long as the slice took, so it loads one connection for a fifth of the time.
_REST = 4.0
_LOGGED_MAX = 10

_log = structlog.get_logger("tollkeeper.ledger")


@dataclass(frozen=True, slots=True)
class Difference:
    invariant: str
    subject: str
    detail: str


# Finished slices, and all slices.
Progress = Callable[[int, int], None]


class _Findings:
    def __init__(self, on_progress: Progress) -> None:
        self._on_progress = on_progress
        self._stored: list[Difference] = []
        self._left_out = 0
        self._done = 0
        # Estimated.
        self.slices = 0

    def add(self, differences: Sequence[tuple[str, str, str]]) -> None:
        room = DIFFERENCES_MAX - len(self._stored)
        self._stored += [Difference(*difference) for difference in differences[:room]]
        self._left_out += max(0, len(differences) - room)

    def slice_done(self) -> None:
        self._done += 1
        # There are more if organizations were created after the estimate.
        self.slices = max(self.slices, self._done)
        self._on_progress(self._done, self.slices)

    @property
    def all(self) -> list[Difference]:
        if not self._left_out:
            return self._stored
        return [*self._stored, Difference(_LEFT_OUT, str(self._left_out), "are not shown")]


class Verification:
    def __init__(self, database: Database, ages: Ages, *, rest: float = 0) -> None:
        """Pauses `rest` times a slice's duration after it."""
        self._database = database
        self._ages = ages
        self._rest = rest

    async def verify(
        self, *, full: bool = False, on_progress: Progress = lambda _done, _all: None
    ) -> list[Difference]:
        """`full` proves months again that were proven before, if their rows still exist."""
        async with self._database.autocommit() as connection:
            return await self.verify_on(connection, full=full, on_progress=on_progress)

    async def verify_on(
        self,
        connection: Connection,
        *,
        full: bool = False,
        on_progress: Progress = lambda _done, _all: None,
    ) -> list[Difference]:
        """The same on a connection that the caller already has."""
        async with ledger_months.preventing_month_changes(connection) as protected:
            if not protected:
                raise months_in_use()
            return await self._verify(connection, _Findings(on_progress), full=full)

    async def _verify(
        self, connection: Connection, findings: _Findings, *, full: bool
    ) -> list[Difference]:
        closes = await ledger_months.find_closes(connection)
        to_prove = await _find_to_prove(connection, closes, full=full)
        ranges = _open_ranges(await ledger_months.find_months(connection), closes)
        pages = await verification.count_organizations(connection) // ORGANIZATIONS_PER_SLICE + 1
        findings.slices = 1 + len(closes) + pages * (1 + len(ranges) + len(to_prove))
        async with _slice(connection):
            differences = await verification.find_in_slice(
                connection, verification.SCHEMA, Slice(), self._ages
            )
        findings.add(differences)
        findings.slice_done()
        await _check_chain(connection, closes, findings)
        unproven: set[Month] = set()
        closed_from, closed_to = await verification.find_closed_range(connection)
        async for organizations in _pages_of_organizations(connection):
            part = replace(organizations, closed_from=closed_from, closed_to=closed_to)
            await self._check(connection, verification.SUMS, part, findings)
            for first_id, last_id in ranges:
                rows = replace(part, first_id=first_id, last_id=last_id)
                await self._check(connection, verification.ROWS, rows, findings)
            for month in to_prove:
                if not await self._prove(connection, month, organizations, findings):
                    unproven.add(month)
        for month in to_prove:
            if month not in unproven:
                await ledger_months.write_step(connection, month, "proven")
        return findings.all

    async def _check(
        self,
        connection: Connection,
        queries: dict[str, verification.Query],
        part: Slice,
        findings: _Findings,
    ) -> None:
        began = asyncio.get_running_loop().time()
        async with _slice(connection):
            differences = await verification.find_in_slice(connection, queries, part, self._ages)
        findings.add(differences)
        findings.slice_done()
        await self._rest_since(began)

    async def _rest_since(self, began: float) -> None:
        if self._rest:
            await asyncio.sleep(self._rest * (asyncio.get_running_loop().time() - began))

    async def _prove(
        self, connection: Connection, month: Month, organizations: Slice, findings: _Findings
    ) -> bool:
        """Totals against rows, and the rows' invariants. True if there's no difference."""
        began = asyncio.get_running_loop().time()
        rows = replace(organizations, first_id=month.first_id, last_id=_before(month.end_id))
        async with _slice(connection):
            differences = await close_proof.find_close_differences(connection, month, organizations)
            differences += await verification.find_in_slice(
                connection, verification.ROWS, rows, self._ages
            )
        findings.add(differences)
        findings.slice_done()
        await self._rest_since(began)
        return not differences


@asynccontextmanager
async def _slice(connection: Connection) -> AsyncIterator[None]:
    async with connection.transaction():
        await verification.begin_snapshot(connection)
        yield


async def _find_to_prove(
    connection: Connection, closes: Sequence[Close], *, full: bool
) -> list[Month]:
    """Those with rows; without `full`, only never proven ones."""
    steps = await ledger_months.find_steps(connection)
    return [
        close.month
        for close in closes
        if (close.month, "dropped") not in steps and (full or (close.month, "proven") not in steps)
    ]


async def _check_chain(
    connection: Connection, closes: Sequence[Close], findings: _Findings
) -> None:
    """Each digest covers the previous one."""
    previous: Close | None = None
    for close in closes:
        async with _slice(connection):
            digest = await close_digest(
                connection,
                close.month,
                close.reservations,
                None if previous is None else previous.digest,
            )
        differences = []
        if digest != close.digest:
            detail = f"closed with digest {close.digest.hex()}, its totals have {digest.hex()}"
            differences.append((CLOSES_ARE_UNCHANGED, str(close.month), detail))
        if close.previous_month != (None if previous is None else previous.month):
            detail = f"follows {close.previous_month}, not the close before it"
            differences.append((CLOSES_ARE_UNCHANGED, str(close.month), detail))
        findings.add(differences)
        findings.slice_done()
        previous = close


async def _pages_of_organizations(connection: Connection) -> AsyncIterator[Slice]:
    after = FIRST_ID
    while after != LAST_ID:
        end = await verification.find_organizations_end(connection, after, ORGANIZATIONS_PER_SLICE)
        yield Slice(after=after, end=end)
        after = end


def _open_ranges(months: Sequence[Month], closes: Sequence[Close]) -> list[tuple[UUID, UUID]]:
    """Ids outside closed months: each open month, and before, between and after the months."""
    closed = {close.month for close in closes}
    ranges = []
    begin = FIRST_ID
    for month in sorted({*months, *closed}):
        if begin < month.first_id:
            ranges.append((begin, _before(month.first_id)))
        if month not in closed:
            ranges.append((month.first_id, _before(month.end_id)))
        begin = month.end_id
    return [*ranges, (begin, LAST_ID)]


def _before(identity: UUID) -> UUID:
    return UUID(int=identity.int - 1)


class RegularVerification:
    """Every day, in one process at a time."""

    def __init__(self, database: Database, ages: Ages) -> None:
        self._database = database
        self._verification = Verification(database, ages, rest=_REST)

    async def verify_if_due(self) -> bool:
        """Unless any process or `ledger verify` did within `EVERY_HOURS`, or another is at it.
        Returns whether it did."""
        async with (
            self._database.autocommit() as connection,
            verification.verification_lock(connection) as has_lock,
        ):
            if not has_lock or not await verification.verification_is_due(connection, EVERY_HOURS):
                return False
            # On the same connection, because a second one may be the last of the pool.
            differences = await self._verification.verify_on(connection)
            await verification.write_verification(connection, len(differences))
        for difference in differences[:_LOGGED_MAX]:
            _log.error(
                "the ledger has a difference",
                invariant=difference.invariant,
                subject=difference.subject,
                detail=difference.detail,
            )
        _log.info("the ledger was verified", differences=len(differences))
        return True
