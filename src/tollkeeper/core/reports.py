"""Cost reports: the query, its days, and pages of buckets, one a day."""

from dataclasses import dataclass
from enum import StrEnum

from tollkeeper.core.access import KeyId, ProjectId

DAY_S = 86400
# Of 9999, the last year of Python's dates.
TIME_MAX = 253402300799


class CostDimension(StrEnum):
    PROJECT_ID = "project_id"
    API_KEY_ID = "api_key_id"
    LINE_ITEM = "line_item"


@dataclass(frozen=True, slots=True)
class CostQuery:
    """In Unix seconds. Without `end_time` the report ends now. `limit` is the days of a page."""

    start_time: int
    end_time: int | None
    project_ids: tuple[ProjectId, ...]
    api_key_ids: tuple[KeyId, ...]
    group_by: tuple[CostDimension, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class CostRow:
    """Of one group on one day, counted from 1970-01-01. A dimension is None if the query doesn't group by
    it."""

    day: int
    amount_picousd: int
    project_id: ProjectId | None = None
    api_key_id: KeyId | None = None
    line_item: str | None = None


@dataclass(frozen=True, slots=True)
class CostBucket:
    start_time: int
    end_time: int
    rows: tuple[CostRow, ...]


@dataclass(frozen=True, slots=True)
class CostPage:
    buckets: tuple[CostBucket, ...]
    next_page: str | None
    unsettled_requests: int


@dataclass(frozen=True, slots=True)
class DayRange:
    """Counted from 1970-01-01; `end` is exclusive."""

    first: int
    end: int


def days_of(start_time: int, end_time: int) -> DayRange:
    """That overlap the range; `end_time` is exclusive. None if it's empty."""
    if end_time <= start_time:
        return DayRange(first=0, end=0)
    return DayRange(first=start_time // DAY_S, end=(end_time - 1) // DAY_S + 1)


def buckets_of(days: DayRange, rows: list[CostRow]) -> tuple[CostBucket, ...]:
    """Days without cost have one too."""
    by_day: dict[int, list[CostRow]] = {day: [] for day in range(days.first, days.end)}
    for row in rows:
        by_day[row.day].append(row)
    return tuple(
        CostBucket(start_time=day * DAY_S, end_time=(day + 1) * DAY_S, rows=tuple(rows_of_day))
        for day, rows_of_day in by_day.items()
    )
