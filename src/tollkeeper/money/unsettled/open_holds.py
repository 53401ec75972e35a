"""Finds every open hold, even old ones, or from when a clock was wrong. Accounts count each
project's open holds. The search starts with the newest reservations, which include nearly all;
where some are still missing, it pages through all the organization's reservations."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.database.database import Connection
from tollkeeper.money.unsettled import open_holds_store as open_holds
from tollkeeper.money.unsettled.open_holds_store import FIRST_ID, LAST_ID, OpenHold

# Searches windows backwards from now, one statement each. The first is this long, each next one
# twice as long, up to `_WINDOW_S_MAX`.
_FIRST_WINDOW_S = 60
_WINDOW_S_MAX = 900
# How far the windows go, over all organizations. For older holds, visiting only the few
# organizations that miss some reads fewer reservations.
_SEARCH_S = 3600
# The same in the cheap search for metrics.
_QUICK_SEARCH_S = 900
# Reservations per statement.
_PAGE_SIZE = 20_000

_log = structlog.get_logger("tollkeeper.ledger")


class OpenHolds:
    """Each search first checks what the previous one found."""

    def __init__(self) -> None:
        self._known: dict[UUID, OpenHold] = {}

    async def find_all(self, connection: Connection) -> list[OpenHold]:
        search = await self._search_windows(connection, _SEARCH_S)
        # Outside the snapshot: a long one keeps PostgreSQL from removing old row versions.
        for organization_id in search.incomplete:
            async for page in _pages(connection, organization_id):
                search.add(hold for hold in page if search.is_older_than_windows(hold))
                if organization_id not in search.incomplete:
                    break
        if search.missing:
            _log.warning(
                "the accounts count more open holds than were found: either the others ended meanwhile, "
                "or the ledger is wrong (run `tollkeeper ledger verify`)",
                count=search.missing.total(),
            )
        self._known = search.found
        return list(search.found.values())

    async def oldest_age_s(self, connection: Connection) -> float:
        """0 if there is none. One that's older than the quarter of an hour and was never found
        counts as that old until `find_all` finds it."""
        search = await self._search_windows(connection, _QUICK_SEARCH_S)
        self._known = search.found
        times = [hold.held_at for hold in search.found.values()]
        if search.missing:
            times.append(search.since)
        ages = [(search.now - held_at).total_seconds() for held_at in times]
        return max([0.0, *ages])

    async def _search_windows(self, connection: Connection, reach_s: int) -> "_Search":
        """In one snapshot, until no hold is missing, at most `reach_s` seconds back."""
        async with open_holds.snapshot(connection) as now:
            search = _Search(now, await open_holds.count_by_project(connection))
            search.add(await open_holds.find_still_open(connection, self._known.values()))
            newest = None
            for age_s in _ends_of_windows(reach_s):
                if not search.missing:
                    break
                search.since = now - timedelta(seconds=age_s)
                search.add(await open_holds.find_created_between(connection, search.since, newest))
                newest = search.since
        return search


class _Search:
    """What's found so far, and how many each project still misses."""

    def __init__(self, now: datetime, counted: dict[tuple[OrganizationId, ProjectId], int]) -> None:
        self.now = now
        self.since = now
        self.found: dict[UUID, OpenHold] = {}
        self.missing = Counter(counted)

    @property
    def incomplete(self) -> set[OrganizationId]:
        return {organization_id for organization_id, _ in self.missing}

    def is_older_than_windows(self, hold: OpenHold) -> bool:
        """A newer one was found in a window, or created after the accounts were counted."""
        return hold.held_at < self.since

    def add(self, holds: Iterable[OpenHold]) -> None:
        new_holds = [hold for hold in holds if hold.id not in self.found]
        self.found.update((hold.id, hold) for hold in new_holds)
        self.missing -= Counter((hold.organization_id, hold.project_id) for hold in new_holds)


def _ends_of_windows(reach_s: int) -> Iterator[int]:
    """Ages in seconds, going back in time."""
    end_s, window_s = 0, _FIRST_WINDOW_S
    while end_s < reach_s:
        end_s += window_s
        yield end_s
        window_s = min(2 * window_s, _WINDOW_S_MAX)


async def _pages(
    connection: Connection, organization_id: OrganizationId
) -> AsyncIterator[list[OpenHold]]:
    """The open holds of each page of all its reservations."""
    after = FIRST_ID
    while after != LAST_ID:
        end = await open_holds.find_page_end(connection, organization_id, after, _PAGE_SIZE)
        yield await open_holds.find_in_page(connection, organization_id, after, end)
        after = end
