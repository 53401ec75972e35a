"""Creates and resolves holds of one tenant as a gateway would, and reads the database rows."""

from dataclasses import dataclass, replace
from typing import Any, LiteralString

from tests.support.gateway import Gateway, Tenant
from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.money import PICOUSD_PER_USD
from tollkeeper.core.pricing import Bounds, Pricing
from tollkeeper.core.runtime.request_ids import new_request_id
from tollkeeper.money.holds.rule import ADMITTED, Decision
from tollkeeper.money.holds.values import Hold, Resolution, ResolutionKind
from tollkeeper.setup.services import Services

USD = PICOUSD_PER_USD
MODEL = "example/chat-small"


@dataclass(frozen=True)
class Books:
    services: Services
    organization: OrganizationId
    project: ProjectId
    key: KeyId

    def hold_of(self, amount: int) -> Hold:
        """Returns a new hold, which is not written yet. Its whole amount is the price of the request."""
        return Hold(
            organization_id=self.organization,
            id=new_request_id(),
            project_id=self.project,
            key_id=self.key,
            model=MODEL,
            pricing=Pricing(0, 0, 0, amount, 0, declared={}),
            bounds=Bounds(prompt_tokens=1, choices=1, output_tokens_each=1, images=0),
            hold_picousd=amount,
        )

    async def try_hold(self, amount: int) -> Decision:
        return await self.services.ledger.hold(self.hold_of(amount))

    async def hold(self, amount: int) -> Hold:
        hold = self.hold_of(amount)
        decision = await self.services.ledger.hold(hold)
        assert decision == ADMITTED, decision
        return hold

    async def settle(self, hold: Hold, amount: int) -> None:
        await self._resolve(hold, ResolutionKind.SETTLED, amount)

    async def release(self, hold: Hold) -> None:
        await self._resolve(hold, ResolutionKind.RELEASED, 0)

    async def leave_unsettled(self, hold: Hold, reason: str = "reset by the backend") -> None:
        assert await self.services.ledger.mark_unsettled(hold, reason)

    async def spend(self, hold: int, amount: int) -> Hold:
        made = await self.hold(hold)
        await self.settle(made, amount)
        return made

    async def grant(self, amount: int) -> None:
        await self.services.accounts.credit_grant(self.organization, amount)

    async def balance(self) -> dict[str, int]:
        found = await self.services.accounts.credit_show(self.organization)
        return {
            "granted": found.granted_picousd,
            "available": found.available_picousd,
            "held": found.held_picousd,
            "settled": found.settled_picousd,
            "unsettled": found.unsettled_picousd,
        }

    async def assert_right(self) -> None:
        """Checks every invariant of the ledger in the whole database."""
        differences = await self.services.reconciliation.ledger_verify()
        assert differences == [], differences

    async def waiting(self) -> int:
        """Returns the number of resolved or unsettled holds that are not folded into the account yet."""
        rows = await self.sql(
            "SELECT count(*) FROM unfolded WHERE organization_id = %s", self.organization
        )
        return int(rows[0][0])

    async def sql(self, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        async with self.services.database.autocommit() as connection:
            cursor = await connection.execute(statement, parameters)
            return [] if cursor.description is None else await cursor.fetchall()

    async def second_project(self) -> "Books":
        project = await self.services.projects.project_create(self.organization, "second")
        key, _ = await self.services.project_keys.project_key_create_by_operator(
            project.id, "second", None, None
        )
        return replace(self, project=project.id, key=key.id)

    async def _resolve(self, hold: Hold, kind: ResolutionKind, amount: int) -> None:
        resolution = Resolution(
            organization_id=self.organization,
            reservation_id=hold.id,
            kind=kind,
            resolved_by="call",
            request=amount,
        )
        assert await self.services.ledger.resolve(resolution)


async def open_books(gateway: Gateway, tenant: Tenant, credit: int = 100 * USD) -> Books:
    keys = await gateway.services.project_keys.project_key_list(tenant.project_id)
    books = Books(gateway.services, tenant.organization_id, tenant.project_id, keys[0].id)
    if credit:
        await books.grant(credit)
    return books
