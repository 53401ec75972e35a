"""Account statements: an organization's grants, charges and balances in one month (UTC)."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.months import Month
from tollkeeper.money.payments.rule import GrantTotal

# `MODEL, DIMENSION`, and an adjustment ends with the day of its call. A model's name may have any character.
_LINE_ITEM = re.compile(
    r"(?P<model>.*), [a-z_]+(?:, adjustment of (?P<day>\d{4}-\d{2}-\d{2}))?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ProjectCost:
    """From a roll-up."""

    project_id: ProjectId
    project_name: str
    line_item: str
    amount_picousd: int


@dataclass(frozen=True, slots=True)
class Charge:
    """Of a project's calls to a model. With `adjusts_day` an adjustment: calls of that day whose cost wasn't
    known when their month was closed."""

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
    # The month is closed, so it never changes.
    final: bool
    # Not charged yet, and what's held for them.
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
    return _parts(line_item)["model"]


def adjusted_day(line_item: str) -> str | None:
    """YYYY-MM-DD; None if it's no adjustment."""
    return _parts(line_item)["day"]


def charges_of(costs: Iterable[ProjectCost]) -> tuple[Charge, ...]:
    """By project and model, adjustments also by day."""
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
    """With a header. Charges are negative, so the rows add up to the closing balance. The last row, what's
    held for unsettled calls, isn't part of it."""

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
