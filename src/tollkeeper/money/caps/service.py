"""Caps, for operators. Each change locks the organization's account first, so no call is admitted
with the old values."""

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound
from tollkeeper.core.money import PICOUSD_MAX, usd_from_picousd
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.caps import counts as cap_counts
from tollkeeper.money.caps import store as caps
from tollkeeper.money.caps.rule import Cap, CapPeriod, CapUse
from tollkeeper.money.caps.store import CapOwner
from tollkeeper.money.credit.locked_account import lock_and_fold_account, no_organization
from tollkeeper.money.holds.rule import DefaultLimits
from tollkeeper.tenants import organizations_store as organizations
from tollkeeper.tenants.audit.service import record_change


class Caps:
    def __init__(self, database: Database, limits: DefaultLimits) -> None:
        self._database = database
        self._limits = limits

    async def cap_set(
        self,
        organization_id: OrganizationId,
        amount_picousd: int,
        period: CapPeriod,
        project_id: ProjectId | None = None,
        key_id: KeyId | None = None,
    ) -> CapUse:
        """One per owner and period. If it's below what's held and spent, new calls are rejected,
        and calls in flight continue."""
        if not 0 <= amount_picousd <= PICOUSD_MAX:
            raise InvalidRequest("A cap is an amount of 0 USD or more.", param="amount")
        cap = Cap(amount_picousd, period)
        async with self._database.transaction() as connection:
            owner = await self._lock(connection, organization_id, project_id, key_id)
            before = (await caps.find_caps(connection, owner)).get(period)
            await caps.write_cap(connection, owner, cap)
            if before is None:
                await cap_counts.recount(connection, organization_id, owner.subject_id, period)
            await _record(connection, "cap_set", owner, before, cap)
            [cap_use] = (
                use
                for use in await caps.find_uses(connection, organization_id, [owner.subject_id])
                if use.cap == cap
            )
            return cap_use

    async def cap_clear(
        self,
        organization_id: OrganizationId,
        project_id: ProjectId | None = None,
        key_id: KeyId | None = None,
        period: CapPeriod | None = None,
    ) -> None:
        """No period means all caps of the owner. Succeeds even if there is none."""
        async with self._database.transaction() as connection:
            owner = await self._lock(connection, organization_id, project_id, key_id)
            for found, before in (await caps.find_caps(connection, owner)).items():
                if period in (None, found):
                    await caps.delete_cap(connection, owner, found)
                    await _record(connection, "cap_clear", owner, before, None)

    async def cap_show(self, organization_id: OrganizationId) -> list[CapUse]:
        """First the organization's own, then its projects', then keys'."""
        async with self._database.autocommit() as connection:
            if await organizations.find(connection, organization_id) is None:
                raise no_organization(organization_id)
            return await caps.find_uses(connection, organization_id)

    async def cap_show_of_key(self, organization_id: OrganizationId, key_id: KeyId) -> list[CapUse]:
        """Only the key's own. Rotated keys share the caps of the first in their chain."""
        async with self._database.autocommit() as connection:
            first_key_and_project = await caps.find_first_key(connection, organization_id, key_id)
            if first_key_and_project is None:
                raise NotFound(f"There is no key {key_id} in this organization.")
            return await caps.find_uses(connection, organization_id, [first_key_and_project[0]])

    async def cap_keys(
        self, organization_id: OrganizationId, first_key_id: KeyId
    ) -> tuple[KeyId, ...]:
        async with self._database.autocommit() as connection:
            return tuple(await caps.find_keys(connection, organization_id, first_key_id))

    async def _lock(
        self,
        connection: Connection,
        organization_id: OrganizationId,
        project_id: ProjectId | None,
        key_id: KeyId | None,
    ) -> CapOwner:
        if key_id is None:
            await lock_and_fold_account(connection, self._limits, organization_id, project_id)
            return CapOwner(organization_id, project_id)
        first_key_and_project = await caps.find_first_key(connection, organization_id, key_id)
        if first_key_and_project is None or project_id not in (None, first_key_and_project[1]):
            raise NotFound(f"There is no key {key_id} in this organization.")
        first_key_id, owned_by = first_key_and_project
        await lock_and_fold_account(
            connection, self._limits, organization_id, owned_by, keys=[key_id]
        )
        return CapOwner(organization_id, owned_by, first_key_id)


async def _record(
    connection: Connection, operation: str, owner: CapOwner, before: Cap | None, after: Cap | None
) -> None:
    if before == after:
        return
    await record_change(
        connection,
        owner.organization_id,
        operation,
        "cap",
        owner.subject_id,
        before=_shown(before),
        after=_shown(after),
    )


def _shown(cap: Cap | None) -> dict[str, str] | None:
    if cap is None:
        return None
    return {"amount": usd_from_picousd(cap.amount_picousd), "period": cap.period.value}
