"""Reports on calls in a time range, from roll-ups by step (five minutes)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.views import ActivityEntry, CallLedger, Position, RareFilter, Sort
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.settlement import reservations
from tollkeeper.policies import store as policies
from tollkeeper.reports import sums
from tollkeeper.reports.activity import pages as activity_pages
from tollkeeper.reports.activity.pages import FoundRecords
from tollkeeper.reports.activity.service import Activity
from tollkeeper.reports.traffic.rule import (
    STEP_S,
    BackendTraffic,
    Latencies,
    LatencyCount,
    StepCount,
    TimeRange,
    TrafficFilter,
)
from tollkeeper.tenants.models import CurrentCatalog

PAGE_MAX = 200
RANGE_S_MAX = 366 * 86_400
# Records read for one page, if it's sorted or a filter is no column of the roll-ups.
_READ_MAX = 6_000
# Judged calls read for one page, if it's sorted or has filters besides the policy.
_JUDGED_CALLS_MAX = 1_000
# Steps searched for one page; each needs an index search.
_STEPS_MAX = 600
# Hours that one query searches for expensive calls before we look whether they fill a page.
_HOURS_AT_ONCE = 24


@dataclass(frozen=True, slots=True)
class TrafficReport:
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
    # Where the next page goes on; None on the last one.
    older: Position | None
    # Newest first. Only filters on columns of the roll-ups apply to these.
    steps: tuple[StepCount, ...]
    # Matching records read. A sorted page shows the first of them.
    records_read: int


@dataclass(frozen=True, slots=True)
class CallDetails:
    """`ledger` is None if nothing was held."""

    entry: ActivityEntry
    ledger: CallLedger | None


@dataclass(frozen=True, slots=True)
class CacheSaving:
    """By prompt caching: cached tokens times the difference of today's prices."""

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
        """Newest first. `rare` are filters that the roll-ups have no columns for. The search is
        limited, so a page can be short although there are older records. With `sort`, it's the
        first of the newest records that the search got to."""
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
        """Without models that are no longer in the catalogue, because their prices are unknown."""
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
    """And where the search ended, if there may be older records. Roll-ups say how many records a
    step has, so only the needed steps are read."""
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
    # Everything back to the beginning of the last searched step was read.
    return found, Position(searched[-1] * STEP_S * 1000, UUID(int=0)) if more else None


async def _find_expensive_steps(
    connection: Connection, traffic_filter: TrafficFilter, time: TimeRange, cost_picousd_min: int
) -> list[tuple[int, int]]:
    """The newest steps with a call that cost this much, of any tenant, each with its number of
    records. At least as many as a page searches, plus one if there are older ones."""
    hours = await sums.find_expensive_hours(connection, traffic_filter, time, cost_picousd_min)
    steps: list[tuple[int, int]] = []
    for start in range(0, len(hours), _HOURS_AT_ONCE):
        chunk = hours[start : start + _HOURS_AT_ONCE]
        steps += await sums.find_steps(
            connection, traffic_filter, time, cost_picousd_min=cost_picousd_min, hours=chunk
        )
        # The previous page may have shown the first step's records, and the last one only shows
        # that there are older steps.
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
    """And where the search ended, if there may be older records."""
    assert rare.policy_id is not None
    owner = traffic_filter.organization_id or await policies.find_organization(
        connection, rare.policy_id
    )
    if owner is None:
        return FoundRecords([], 0, None), None
    traffic_filter = replace(traffic_filter, organization_id=owner)
    # Otherwise every judged call is an entry of the page.
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
    """The newest steps that have `records_wanted` together, and whether there are older ones. The
    previous page ended in `newest`."""
    searched: list[int] = []
    counted = 0
    for step, records in steps:
        if counted >= records_wanted or len(searched) == _STEPS_MAX:
            return searched, True
        searched.append(step)
        # Some of these were on the previous page.
        counted += 0 if step == newest else records
    return searched, False
