"""The ledger as a plain list of reservations: what the real one must agree with after every step."""

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from tests.support.ledger import Balance, LedgerTenant
from tollkeeper.domain.admission import Refusal
from tollkeeper.domain.caps import Cap, CapPeriod
from tollkeeper.domain.ledger import Hold


class Phase(StrEnum):
    HELD = "held"
    UNSETTLED = "unsettled"
    RESOLVED = "resolved"


@dataclass
class Reserved:
    hold: Hold
    month: int
    phase: Phase = Phase.HELD
    cost: int = 0

    @property
    def amount(self) -> int:
        return self.hold.hold_picousd

    @property
    def blocked(self) -> int:
        return 0 if self.phase is Phase.RESOLVED else self.amount


@dataclass
class Model:
    granted: int = 0
    month: int = 0
    reserved: dict[UUID, Reserved] = field(default_factory=dict)
    cap: Cap | None = None
    project_caps: dict[UUID, Cap] = field(default_factory=dict)
    concurrency: dict[UUID, int] = field(default_factory=dict)
    dead_keys: set[UUID] = field(default_factory=set)
    archived: set[UUID] = field(default_factory=set)

    def in_phase(self, *phases: Phase) -> list[Reserved]:
        return [one for one in self.reserved.values() if one.phase in phases]

    def of_project(self, project_id: UUID) -> list[Reserved]:
        return [one for one in self.reserved.values() if one.hold.project_id == project_id]

    @property
    def available(self) -> int:
        return self.granted - sum(one.blocked + one.cost for one in self.reserved.values())

    @property
    def settled(self) -> int:
        return sum(one.cost for one in self.reserved.values())

    def balance(self) -> Balance:
        return Balance(
            available=self.available,
            held=sum(one.amount for one in self.in_phase(Phase.HELD)),
            unsettled=sum(one.amount for one in self.in_phase(Phase.UNSETTLED)),
            settled=self.settled,
            overage=sum(max(0, one.cost - one.amount) for one in self.reserved.values()),
        )

    def refusal(self, tenant: LedgerTenant, amount: int) -> Refusal | None:
        if tenant.key_id in self.dead_keys:
            return Refusal.KEY_NOT_ACTIVE
        if tenant.project_id in self.archived:
            return Refusal.PROJECT_ARCHIVED
        if self.available < 0 or self.available < amount:
            return Refusal.CREDIT
        mine = self.of_project(tenant.project_id)
        if self._over(self.cap, list(self.reserved.values()), amount):
            return Refusal.ORGANIZATION_CAP
        if self._over(self.project_caps.get(tenant.project_id), mine, amount):
            return Refusal.PROJECT_CAP
        live = sum(one.phase is Phase.HELD for one in mine)
        if live >= self.concurrency.get(tenant.project_id, 10**6):
            return Refusal.CONCURRENCY
        return None

    def _over(self, cap: Cap | None, reserved: list[Reserved], amount: int) -> bool:
        if cap is None:
            return False
        counted = sum(
            one.blocked + one.cost
            for one in reserved
            if cap.period is CapPeriod.TOTAL or one.month == self.month
        )
        return counted + amount > cap.amount_picousd
