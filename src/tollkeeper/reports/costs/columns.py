"""The columns of costs in files and tables. A new column is a line here."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.reports import CostBucket, CostDimension, CostRow
from tollkeeper.reports.statements.rule import model_of


@dataclass(frozen=True, slots=True)
class CostGrouping:
    title: str
    dimension: CostDimension
    group: Callable[[CostRow], str]
    # What it's called and, if that's an id, its name.
    columns: tuple[str, ...]


COST_GROUPINGS = {
    "model": CostGrouping(
        title="Model",
        dimension=CostDimension.LINE_ITEM,
        group=lambda row: model_of(row.line_item or ""),
        columns=("model",),
    ),
    "project": CostGrouping(
        title="Project",
        dimension=CostDimension.PROJECT_ID,
        group=lambda row: str(row.project_id),
        columns=("project_id", "project"),
    ),
    "key": CostGrouping(
        title="Key",
        dimension=CostDimension.API_KEY_ID,
        group=lambda row: str(row.api_key_id),
        columns=("api_key_id", "key"),
    ),
    "line_item": CostGrouping(
        title="Line item",
        dimension=CostDimension.LINE_ITEM,
        group=lambda row: row.line_item or "",
        columns=("line_item",),
    ),
}
GROUPING_OF = {
    CostDimension.PROJECT_ID: COST_GROUPINGS["project"],
    CostDimension.API_KEY_ID: COST_GROUPINGS["key"],
    CostDimension.LINE_ITEM: COST_GROUPINGS["line_item"],
}


def cost_table(
    buckets: Sequence[CostBucket], groupings: Sequence[CostGrouping], names: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """The header, then a row per day and group with a cost: every file of costs has these."""
    amounts: dict[tuple[str, ...], int] = defaultdict(int)
    for bucket in buckets:
        for row in bucket.rows:
            groups = tuple(grouping.group(row) for grouping in groupings)
            amounts[(day_text(bucket.start_time), *groups)] += row.amount_picousd
    header = ("day", *(name for grouping in groupings for name in grouping.columns), "amount_usd")
    return [
        header,
        *(
            (day, *_columns(groups, groupings, names), usd_from_picousd(amount))
            for (day, *groups), amount in amounts.items()
            if amount
        ),
    ]


def _columns(
    groups: Sequence[str], groupings: Sequence[CostGrouping], names: Mapping[str, str]
) -> list[str]:
    return [
        text
        for group, grouping in zip(groups, groupings, strict=True)
        for text in (group, names.get(group, group))[: len(grouping.columns)]
    ]


def day_text(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")
