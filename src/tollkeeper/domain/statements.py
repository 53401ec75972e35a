"""Defines account statements: one organization's grants, charges and balances in one month
(UTC)."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.months import Month
from tollkeeper.domain.payments import GrantKind

# A line item is `MODEL, DIMENSION`. An adjustment has the day of its call at the end. The name of a
# model may contain any character.
_LINE_ITEM = re.compile(
    r"(?P<model>.*), [a-z_]+(?:, adjustment of (?P<day>\d{4}-\d{2}-\d{2}))?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class GrantTotal:
    kind: GrantKind
    count: int
    amount_picousd: int


@dataclass(frozen=True, slots=True)
class ProjectCost:
    """Contains a project's cost in the month for one line item, from a roll-up (stored sums)."""

    project_id: ProjectId
    project_name: str
    line_item: str
    amount_picousd: int


@dataclass(frozen=True, slots=True)
class Charge:
    """Contains the cost of a project's calls to a model. If `adjusts_day` is set, the charge is an
    adjustment: the cost of calls on that day, which was not known when their month was closed."""

    project_id: ProjectId
    project_name: str
    model: str
    adjusts_day: str | None
    amount_picousd: int


@dataclass(frozen=True, slots=True)
class Statement:
    organization_id: OrganizationId
    month: Month
    opening_picousd: int
    grants: tuple[GrantTotal, ...]
    charges: tuple[Charge, ...]
    adjustments: tuple[Charge, ...]
    closing_picousd: int
    # Whether the month is closed, so that the statement never changes.
    final: bool
    # The number of the month's calls with unknown cost, and the amount that is held for them. These
    # calls are not charged yet.
    unsettled_calls: int
    unsettled_picousd: int

    @property
    def granted_picousd(self) -> int:
        return sum(grant.amount_picousd for grant in self.grants)

    @property
    def charged_picousd(self) -> int:
        return sum(charge.amount_picousd for charge in self.charges)

    @property
    def adjusted_picousd(self) -> int:
        return sum(charge.amount_picousd for charge in self.adjustments)


def model_of(line_item: str) -> str:
    """Returns the model in a line item."""
    return _parts(line_item)["model"]


def adjusted_day(line_item: str) -> str | None:
    """Returns the day of the adjusted calls (YYYY-MM-DD) if the line item is an adjustment,
    otherwise None."""
    return _parts(line_item)["day"]


def charges_of(costs: Iterable[ProjectCost]) -> tuple[Charge, ...]:
    """Sums costs by project and model, and adjustments also by day. Sorts by project name, model
    and day."""
    sums: dict[tuple[str, ProjectId, str, str | None], int] = defaultdict(int)
    for cost in costs:
        parts = _parts(cost.line_item)
        sums[cost.project_name, cost.project_id, parts["model"], parts["day"]] += (
            cost.amount_picousd
        )
    ordered = sorted(sums.items(), key=lambda item: (*item[0][:3], item[0][3] or ""))
    return tuple(
        Charge(project_id, name, model, day, amount)
        for (name, project_id, model, day), amount in ordered
    )


def _parts(line_item: str) -> re.Match[str]:
    found = _LINE_ITEM.fullmatch(line_item)
    assert found is not None, line_item
    return found


def statement_rows(statement: Statement) -> list[tuple[str, ...]]:
    """Returns the statement as a table with a header row. Charges have negative amounts, so the
    rows above the closing balance add up to the closing balance. The last row is the unsettled
    amount (held for calls with unknown cost), which is not part of the balance."""

    def row(entry: str, amount: int, *columns: str) -> tuple[str, ...]:
        project_id, project, model, detail = (*columns, "", "", "", "")[:4]
        return (entry, project_id, project, model, detail, usd_from_picousd(amount))

    def charge_row(entry: str, charge: Charge) -> tuple[str, ...]:
        project = (str(charge.project_id), charge.project_name)
        return row(entry, -charge.amount_picousd, *project, charge.model, charge.adjusts_day or "")

    return [
        ("entry", "project_id", "project", "model", "detail", "amount_usd"),
        row("opening balance", statement.opening_picousd),
        *(row(grant.kind, grant.amount_picousd) for grant in statement.grants),
        *(charge_row("charge", charge) for charge in statement.charges),
        *(charge_row("adjustment", charge) for charge in statement.adjustments),
        row("closing balance", statement.closing_picousd),
        row(
            *("unsettled", statement.unsettled_picousd, "", "", ""),
            f"{statement.unsettled_calls} calls, held and not charged yet",
        ),
    ]
