"""Finds every open hold in the books, however old it is and whatever clocks did.

The accounts say how many there are. Holds are looked for among the newest reservations first, where
nearly all of them are. Only where that does not explain the number of an organization, all of its
reservations are gone through, in pages.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.storage import open_holds
from tollkeeper.storage.database import Connection
from tollkeeper.storage.open_holds import FIRST_ID, LAST_ID, OpenHold

# Each window of time is read by a statement of its own. The first one is short, and each is twice as
# long as the one before, up to this length.
_FIRST_WINDOW_S = 60
_WINDOW_S_MAX = 900
# How far back all organizations together are looked through. Beyond it, the reservations of the few
# organizations in question are fewer.
_SEARCH_S = 3600
# How far back a search looks that must stay cheap whatever it finds.
_GLANCE_S = 900
# Reservations that one statement goes through.
_PAGE_SIZE = 20_000

_log = structlog.get_logger("tollkeeper.ledger")


class OpenHolds:
    """Remembers what it found: the next search begins with a look at these."""

    def __init__(self) -> None:
        self._known: dict[UUID, OpenHold] = {}

    async def find_all(self, connection: Connection) -> list[OpenHold]:
        search = await self._search_windows(connection, _SEARCH_S)
        # Outside of the snapshot: to keep one for long would keep the database from cleaning up.
        for organization_id in search.incomplete:
            async for found in _pages(connection, organization_id):
                search.add(hold for hold in found if search.was_missing(hold))
                if organization_id not in search.incomplete:
                    break
        if search.missing:
            _log.warning(
                "open holds that the accounts count were not found: they ended meanwhile, "
                "or `tollkeeper ledger verify` names a difference",
                count=search.missing.total(),
            )
        self._known = search.found
        return list(search.found.values())

    async def oldest_age_s(self, connection: Connection) -> float:
        """The age of the oldest open hold; 0 where there is none. One that is not known yet and is
        older than a quarter of an hour counts as that old until `find_all` finds it."""
        search = await self._search_windows(connection, _GLANCE_S)
        self._known = search.found
        times = [hold.held_at for hold in search.found.values()]
        if search.missing:
            times.append(search.since)
        ages = [(search.now - held_at).total_seconds() for held_at in times]
        return max([0.0, *ages])

    async def _search_windows(self, connection: Connection, reach_s: int) -> "_Search":
        """Looks at the known holds and then back in time until no hold is missing, as of one
        moment."""
        async with open_holds.snapshot(connection) as now:
            search = _Search(now, await open_holds.count_by_project(connection))
            search.add(await open_holds.find_still_open(connection, self._known.values()))
            newest = None
            for age_s in _ends_of_windows(reach_s):
                if not search.missing:
                    break
                search.since = now - timedelta(seconds=age_s)
                search.add(await open_holds.find_made_between(connection, search.since, newest))
                newest = search.since
        return search


class _Search:
    """What was found so far, and how many holds of each project are still missing."""

    def __init__(self, now: datetime, counted: dict[tuple[OrganizationId, ProjectId], int]) -> None:
        self.now = now
        # Every hold that was made from here on is found.
        self.since = now
        self.found: dict[UUID, OpenHold] = {}
        self.missing = Counter(counted)

    @property
    def incomplete(self) -> set[OrganizationId]:
        return {organization_id for organization_id, _ in self.missing}

    def was_missing(self, hold: OpenHold) -> bool:
        """Newer ones may have been made after the moment of the search."""
        return hold.held_at < self.since

    def add(self, holds: Iterable[OpenHold]) -> None:
        fresh = [hold for hold in holds if hold.id not in self.found]
        self.found.update((hold.id, hold) for hold in fresh)
        self.missing -= Counter((hold.organization_id, hold.project_id) for hold in fresh)


def _ends_of_windows(reach_s: int) -> Iterator[int]:
    """How many seconds back each window ends; it begins where the one before ended."""
    end_s, window_s = 0, _FIRST_WINDOW_S
    while end_s < reach_s:
        end_s += window_s
        yield end_s
        window_s = min(2 * window_s, _WINDOW_S_MAX)


async def _pages(
    connection: Connection, organization_id: OrganizationId
) -> AsyncIterator[list[OpenHold]]:
    """The open holds among all reservations of the organization."""
    after = FIRST_ID
    while after != LAST_ID:
        end = await open_holds.find_page_end(connection, organization_id, after, _PAGE_SIZE)
        yield await open_holds.find_in_page(connection, organization_id, after, end)
        after = end
