"""Costs by day, page by page, from the daily roll-up that settlements update."""

import base64
import binascii
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.reports import (
    DAY_S,
    CostPage,
    CostQuery,
    CostRow,
    DayRange,
    buckets_of,
    days_of,
)
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.database.database import Connection, Database
from tollkeeper.reports import sums
from tollkeeper.reports.sums import Unsettled
from tollkeeper.tenants import project_keys_store as project_keys
from tollkeeper.tenants import projects_store as projects

_CURSOR = "cost-cursor"
# First unreported day, and the day after the last one, since 1970.
_POSITION = struct.Struct(">qq")
# Longer pages get fewer days, at least one: a page is read and written in one step of the event
# loop, and all calls wait for it.
_ROWS_MAX = 1000
# Ten years. A whole report is built in memory.
WHOLE_REPORT_DAYS_MAX = 3660


@dataclass(frozen=True, slots=True)
class KeySpend:
    today_picousd: int
    this_month_picousd: int


class Costs:
    def __init__(self, database: Database, vault: Vault, clock: Clock) -> None:
        self._database = database
        self._vault = vault
        self._clock = clock

    async def key_usage(
        self, organization_id: OrganizationId, project_id: ProjectId, key_id: KeyId
    ) -> KeySpend:
        now = self._clock()
        today = now // DAY_S
        month = datetime.fromtimestamp(now, UTC).replace(day=1)
        first_of_month = today - (datetime.fromtimestamp(now, UTC).date() - month.date()).days
        async with self._database.autocommit(organization_id) as connection:
            rows = await sums.find_costs(
                connection,
                organization_id,
                DayRange(first=first_of_month, end=today + 1),
                project_ids=[project_id],
                api_key_ids=[key_id],
            )
        return KeySpend(
            today_picousd=sum(row.amount_picousd for row in rows if row.day == today),
            this_month_picousd=sum(row.amount_picousd for row in rows),
        )

    async def cost_report(
        self, organization_id: OrganizationId, query: CostQuery, page: str | None
    ) -> CostPage:
        if page is None:
            end = self._clock() if query.end_time is None else query.end_time
            days = days_of(query.start_time, end)
        else:
            days = self._read_cursor(organization_id, query, page)
        page_days = DayRange(first=days.first, end=min(days.end, days.first + query.limit))
        async with self._database.autocommit(organization_id) as connection:
            await _check_ids_exist(connection, organization_id, query)
            page_days, unsettled, rows = await _read(connection, organization_id, query, page_days)
        remaining = DayRange(first=page_days.end, end=days.end)
        next_page = None
        if remaining.first < remaining.end:
            next_page = self._write_cursor(organization_id, query, remaining)
        return CostPage(
            buckets=buckets_of(page_days, rows),
            next_page=next_page,
            unsettled_requests=unsettled.calls,
        )

    async def whole_cost_report(
        self, organization_id: OrganizationId, query: CostQuery
    ) -> CostPage:
        end = self._clock() if query.end_time is None else query.end_time
        if end - query.start_time > WHOLE_REPORT_DAYS_MAX * DAY_S:
            raise InvalidRequest(
                f"A report covers at most {WHOLE_REPORT_DAYS_MAX} days.", param="start_time"
            )
        page = await self.cost_report(organization_id, query, None)
        buckets, unsettled = list(page.buckets), page.unsettled_requests
        while page.next_page is not None:
            page = await self.cost_report(organization_id, query, page.next_page)
            buckets += page.buckets
            unsettled += page.unsettled_requests
        return CostPage(buckets=tuple(buckets), next_page=None, unsettled_requests=unsettled)

    def _write_cursor(
        self, organization_id: OrganizationId, query: CostQuery, remaining: DayRange
    ) -> str:
        """Signed, and valid only for this organization and these filters. Has the end, so that a
        report without an end time ends at the same time on all pages."""
        payload = _POSITION.pack(remaining.first, remaining.end)
        signed = self._vault.sign(payload, _CURSOR, *_binding(organization_id, query))
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def _read_cursor(
        self, organization_id: OrganizationId, query: CostQuery, page: str
    ) -> DayRange:
        try:
            signed = base64.b64decode(page + "=" * (-len(page) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _bad_cursor() from None
        payload = self._vault.verify(signed, _CURSOR, *_binding(organization_id, query))
        # Several base64 texts decode to the same bytes; accept only ours.
        canonical = base64.urlsafe_b64encode(signed).decode().rstrip("=")
        if payload is None or len(payload) != _POSITION.size or canonical != page:
            raise _bad_cursor()
        first, end = _POSITION.unpack(payload)
        return DayRange(first=first, end=end)


async def _read(
    connection: Connection, organization_id: OrganizationId, query: CostQuery, days: DayRange
) -> tuple[DayRange, Unsettled, list[CostRow]]:
    """As many days as have at most `_ROWS_MAX` rows, at least one. Also returns the days it
    read."""
    project_ids, api_key_ids = query.project_ids, query.api_key_ids
    while True:
        # Before the costs: a call that's settled in between then appears twice, but is never
        # missing.
        unsettled = await sums.sum_unsettled(
            connection, organization_id, days, project_ids=project_ids, api_key_ids=api_key_ids
        )
        limit = None if days.end <= days.first + 1 else _ROWS_MAX + 1
        rows = await sums.find_costs(
            connection,
            organization_id,
            days,
            project_ids=project_ids,
            api_key_ids=api_key_ids,
            group_by=query.group_by,
            limit=limit,
        )
        if limit is None or len(rows) < limit:
            return days, unsettled, rows
        days = DayRange(first=days.first, end=max(rows[-1].day, days.first + 1))


def _binding(organization_id: OrganizationId, query: CostQuery) -> tuple[bytes, bytes]:
    filters = (
        query.start_time,
        query.end_time,
        sorted(map(str, query.project_ids)),
        sorted(map(str, query.api_key_ids)),
        sorted(query.group_by),
    )
    return organization_id.bytes, msgspec.json.encode(filters)


def _bad_cursor() -> InvalidRequest:
    return InvalidRequest(
        "This is not a next_page of the same report: keep the original filters.", param="page"
    )


async def _check_ids_exist(
    connection: Connection, organization_id: OrganizationId, query: CostQuery
) -> None:
    if query.project_ids:
        unknown: list[UUID] = [
            *await projects.unknown_ids(connection, organization_id, query.project_ids)
        ]
        if unknown:
            raise NotFound(f"There is no project {unknown[0]}.", param="project_ids")
    if query.api_key_ids:
        unknown = [
            *await project_keys.unknown_ids(connection, organization_id, list(query.api_key_ids))
        ]
        if unknown:
            raise NotFound(f"There is no project key {unknown[0]}.", param="api_key_ids")
