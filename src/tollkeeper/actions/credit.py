"""Declares what operators do with credit."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from tollkeeper.actions.action import WORK, Action, Question
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.money import exact_usd
from tollkeeper.money.payments.rule import GrantKind

if TYPE_CHECKING:
    from tollkeeper.money.credit.service import Grant
    from tollkeeper.setup.services import Services


async def _grant(
    services: Services,
    organization_id: OrganizationId,
    amount_picousd: int,
    note: str,
    kind: GrantKind | None,
    grant_id: UUID | None = None,
) -> Grant:
    return await services.accounts.credit_grant(
        organization_id, amount_picousd, note, kind, grant_id=grant_id
    )


async def _ask(
    services: Services,
    organization_id: OrganizationId,
    amount_picousd: int,
    note: str,
    kind: GrantKind | None,
    grant_id: UUID | None = None,
) -> Question:
    organization = await services.organizations.organization_show(organization_id)
    available = await services.accounts.credit_check(organization_id, amount_picousd, note, kind)
    amount = exact_usd(abs(amount_picousd))
    verb = "Grant" if amount_picousd > 0 else "Withdraw"
    return Question(
        f"{verb} {amount}?",
        "The organization can spend this amount immediately."
        if amount_picousd > 0
        else "Calls are refused as soon as the remaining credit is spent.",
        f"{verb} {amount}",
        facts={
            "Organization": organization.name,
            "Available now": exact_usd(available),
            "Available afterwards": exact_usd(available + amount_picousd),
        },
    )


def _notice(grant: Grant) -> str:
    done = "granted" if grant.amount_picousd > 0 else "withdrawn"
    return f"{exact_usd(abs(grant.amount_picousd))} was {done}."


# A negative amount withdraws credit.
CREDIT_GRANT = Action(WORK, _grant, _notice, _ask)
