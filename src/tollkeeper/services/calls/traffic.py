"""Reports on calls in a time range. The numbers come from roll-ups: sums by step (five minutes)
that are updated when activity records are written, so a report does not read all records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.traffic import (
    STEP_S,
    BackendTraffic,
    Latencies,
    LatencyCount,
    StepCount,
    TimeRange,
    TrafficFilter,
)
from tollkeeper.domain.views import ActivityEntry, CallLedger, Position, RareFilter, Sort
from tollkeeper.services.calls.activity import Activity
from tollkeeper.services.models import CurrentCatalog
from tollkeeper.storage import activity_pages, policies, reservations, sums
from tollkeeper.storage.activity_pages import FoundRecords
from tollkeeper.storage.database import Connection, Database

PAGE_MAX = 200
RANGE_S_MAX = 366 * 86_400
# The maximum number of records that are read for one page, if a filter is not a column of the
# roll-ups, or if the records are sorted.
_READ_MAX = 6_000
# The maximum number of calls with a verdict of the policy that are read for one page, if there are
# filters in addition to the policy, or if the calls are sorted.
_JUDGED_CALLS_MAX = 1_000
# The maximum number of steps that are searched for one page, because each step needs an index
# search.
_STEPS_MAX = 600
# The number of hours that one query searches for expensive calls. After each query,
# `_find_expensive_steps` checks whether the steps found so far suffice for a page.
_HOURS_AT_ONCE = 24


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Contains the numbers of all calls in a time range, by step and by backend."""

    steps: tuple[StepCount, ...]
    backends: tuple[BackendTraffic, ...]
    latency_counts: tuple[LatencyCount, ...]

    @property
    def by_model(self) -> dict[str, list[BackendTraffic]]:
        by_model: dict[str, list[BackendTraffic]] = {}
        for traffic_of_backend in self.backends:
            by_model.setdefault(traffic_of_backend.model, []).append(traffic_of_backend)
        return by_model

    def latencies(
        self, measure: str, *, backend: str | None = None, model: str | None = None
    ) -> Latencies:
        by_bucket: dict[int, int] = {}
        for count in self.latency_counts:
            if (
                count.measure == measure
                and backend in (None, count.backend)
                and model in (None, count.model)
            ):
                by_bucket[count.bucket] = by_bucket.get(count.bucket, 0) + count.requests
        return Latencies(by_bucket)


@dataclass(frozen=True, slots=True)
class ActivityPage:
    entries: tuple[ActivityEntry, ...]
    # The position from which the next page continues; None if there are no older records.
    older: Position | None
    # The numbers of calls by step, newest first. Only filters on columns of the roll-ups apply to
    # these numbers.
    steps: tuple[StepCount, ...]
    # The number of matching records that were read for this page. If the page is sorted, the entries
    # are the first of these records.
    records_read: int


@dataclass(frozen=True, slots=True)
class CallDetails:
    """Contains the activity record of one call, and its data in the ledger (None if nothing was
    reserved for the call)."""

    entry: ActivityEntry
    ledger: CallLedger | None


@dataclass(frozen=True, slots=True)
class CacheSaving:
    """Contains the money that prompt caching has saved for one model: the cached tokens times the
    difference between the current prices of uncached and cached tokens."""

    model: str
    cached_tokens: int
    saved_picousd: int


class Traffic:
    def __init__(self, database: Database, activity: Activity, catalog: CurrentCatalog) -> None:
        self._database = database
        self._activity = activity
        self._catalog = catalog

    async def traffic_report(self, time: TimeRange) -> TrafficReport:
        _check(time)
        async with self._database.autocommit() as connection:
            return TrafficReport(
                steps=tuple(await sums.count_by_step(connection, TrafficFilter(), time)),
                backends=tuple(await sums.sum_by_backend(connection, time)),
                latency_counts=tuple(await sums.count_latencies(connection, time)),
            )

    async def activity_page(
        self,
        traffic_filter: TrafficFilter,
        rare: RareFilter,
        time: TimeRange,
        *,
        before: Position | None = None,
        sort: Sort | None = None,
        limit: int = 50,
    ) -> ActivityPage:
        """Returns a page of activity records, newest first. `rare` are filters for which the
        roll-ups have no columns. A page can have fewer than `limit` entries although there are
        older records, because the search for one page is limited. With `sort`, reads the newest
        matching records up to that limit of the search, and returns the first of them in this
        order."""
        _check(time)
        if not 1 <= limit <= PAGE_MAX:
            raise InvalidRequest(f"A page has 1 to {PAGE_MAX} entries.", param="limit")
        async with self._database.autocommit() as connection:
            steps = await sums.count_by_step(connection, traffic_filter, time)
            find = _find_in_steps if rare.policy_id is None else _find_judged
            found, searched_to = await find(
                connection, traffic_filter, rare, time, before, sort, limit + 1
            )
        entries, older = found.entries[:limit], searched_to
        if sort is not None and found.records == _READ_MAX:
            older = found.oldest
        elif sort is None and len(found.entries) > limit:
            older = Position(entries[-1].started_at_ms, entries[-1].request_id)
        return ActivityPage(tuple(entries), older, tuple(steps), found.records)

    async def call_story(self, request_id: UUID) -> CallDetails:
        entry = await self._activity.activity_show(request_id)
        async with self._database.autocommit() as connection:
            found = await reservations.find_call(connection, entry.organization_id, request_id)
        return CallDetails(entry, found)

    async def cache_savings(
        self, organization_id: OrganizationId, time: TimeRange
    ) -> list[CacheSaving]:
        """Returns the savings of each model. Omits models that are no longer in the catalogue,
        because their prices are unknown."""
        _check(time)
        async with self._database.autocommit() as connection:
            cached = await sums.read(
                connection,
                sums.CALLS,
                sums.steps_of(time),
                {"organization_id": organization_id},
                by=("model",),
                add=("cached_tokens",),
            )
        prices = {model.id: model.pricing for model in self._catalog.catalog.models}
        return [
            CacheSaving(
                model, tokens, tokens * (prices[model].prompt - prices[model].input_cache_read)
            )
            for model, tokens in cached
            if tokens and model in prices
        ]


def _check(time: TimeRange) -> None:
    if time.end < time.start:
        raise InvalidRequest("The end of the time is before its beginning.")
    if time.end - time.start > RANGE_S_MAX:
        raise InvalidRequest(f"A report covers at most {RANGE_S_MAX // 86_400} days.")


async def _find_in_steps(
    connection: Connection,
    traffic_filter: TrafficFilter,
    rare: RareFilter,
    time: TimeRange,
    before: Position | None,
    sort: Sort | None,
    limit: int,
) -> tuple[FoundRecords, Position | None]:
    """Returns records and, if there may be older records, the position at which the search ended.
    The roll-up contains the number of records in each step, so only the steps that the page needs
    are read."""
    newest = None if before is None else before.started_at_ms // 1000 // STEP_S
    end = time.end if newest is None else min(time.end, (newest + 1) * STEP_S)
    searched_time = TimeRange(time.start, max(time.start, end))
    if rare.cost_picousd_min is None or traffic_filter.names_a_tenant:
        steps = await sums.find_steps(
            connection,
            traffic_filter,
            searched_time,
            cost_picousd_min=rare.cost_picousd_min,
            limit=_STEPS_MAX + 1,
        )
    else:
        steps = await _find_expensive_steps(
            connection, traffic_filter, searched_time, rare.cost_picousd_min
        )
    read_max = limit if sort is None else _READ_MAX
    searched, more = _steps_to_search(steps, newest, _READ_MAX if rare else read_max)
    found = await activity_pages.find_in_steps(
        connection,
        searched,
        traffic_filter,
        cost_picousd_min=rare.cost_picousd_min,
        before=before,
        end=time.end,
        sort=sort,
        read_max=read_max,
        limit=limit,
    )
    # All records back to the beginning of the last searched step were read.
    return found, Position(searched[-1] * STEP_S * 1000, UUID(int=0)) if more else None


async def _find_expensive_steps(
    connection: Connection, traffic_filter: TrafficFilter, time: TimeRange, cost_picousd_min: int
) -> list[tuple[int, int]]:
    """Returns the newest steps in which a call of any tenant cost at least `cost_picousd_min`, each
    with its number of records. Returns at least as many steps as one page searches, plus one if
    there are older steps."""
    hours = await sums.find_expensive_hours(connection, traffic_filter, time, cost_picousd_min)
    steps: list[tuple[int, int]] = []
    for start in range(0, len(hours), _HOURS_AT_ONCE):
        chunk = hours[start : start + _HOURS_AT_ONCE]
        steps += await sums.find_steps(
            connection, traffic_filter, time, cost_picousd_min=cost_picousd_min, hours=chunk
        )
        # The first step does not count, because the previous page may already have shown its
        # records. Neither does the last step, which only shows that there are older steps.
        if len(steps) > _STEPS_MAX or sum(records for _, records in steps[1:-1]) >= _READ_MAX:
            break
    return steps


async def _find_judged(
    connection: Connection,
    traffic_filter: TrafficFilter,
    rare: RareFilter,
    time: TimeRange,
    before: Position | None,
    sort: Sort | None,
    limit: int,
) -> tuple[FoundRecords, Position | None]:
    """Returns records and, if there may be older records, the position at which the search ended.
    Finds the records by the verdicts of the policy."""
    assert rare.policy_id is not None
    owner = traffic_filter.organization_id or await policies.find_organization(
        connection, rare.policy_id
    )
    if owner is None:
        return FoundRecords([], 0, None), None
    traffic_filter = replace(traffic_filter, organization_id=owner)
    # Without further filters and without a sort order, each call with a verdict is an entry of the
    # page, so `limit` calls suffice.
    has_further_filters = (
        traffic_filter != TrafficFilter(owner) or rare.cost_picousd_min is not None
    )
    judged_calls_max = _JUDGED_CALLS_MAX if has_further_filters or sort else limit
    positions = await activity_pages.find_judged(
        connection,
        owner,
        rare.policy_id,
        time,
        matched_only=rare.matched_only,
        before=before,
        limit=judged_calls_max,
    )
    found = await activity_pages.find_at(
        connection,
        owner,
        positions,
        traffic_filter,
        cost_picousd_min=rare.cost_picousd_min,
        sort=sort,
        limit=limit,
    )
    return found, positions[-1] if len(positions) == judged_calls_max else None


def _steps_to_search(
    steps: Sequence[tuple[int, int]], newest: int | None, records_wanted: int
) -> tuple[list[int], bool]:
    """Returns the newest steps that together have at least `records_wanted` records, and whether
    older steps have further records. `newest` is the step in which the previous page ended."""
    searched: list[int] = []
    counted = 0
    for step, records in steps:
        if counted >= records_wanted or len(searched) == _STEPS_MAX:
            return searched, True
        searched.append(step)
        # The previous page has already shown some records of the step in which it ended.
        counted += 0 if step == newest else records
    return searched, False
