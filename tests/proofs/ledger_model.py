"""A model of the ledger as a plain list of reservations. The real ledger must agree after every step."""

from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from uuid import UUID

from tests.money.holds.admission_oracle import number_of
from tests.support.ledger import Balance, LedgerTenant
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.holds.rule import Refusal
from tollkeeper.money.holds.values import Hold


class Phase(StrEnum):
    HELD = "held"
    UNSETTLED = "unsettled"
    RESOLVED = "resolved"


@dataclass
class Reserved:
    hold: Hold
    day: date
    phase: Phase = Phase.HELD
    cost: int = 0

    @property
    def amount(self) -> int:
        return self.hold.hold_picousd

    @property
    def overage_max(self) -> int:
        return self.hold.overage_max_picousd

    @property
    def blocked(self) -> int:
        return 0 if self.phase is Phase.RESOLVED else self.amount


@dataclass
class Model:
    granted: int = 0
    reserved: dict[UUID, Reserved] = field(default_factory=dict)
    concurrency: dict[UUID, int] = field(default_factory=dict)
    overage_bound: int = 0
    dead_keys: set[UUID] = field(default_factory=set)
    archived: set[UUID] = field(default_factory=set)
    # The date of the database's clock.
    today: date = date(2028, 2, 20)
    # The caps by project or first key (None is the organization), and by period.
    caps: dict[tuple[UUID | None, CapPeriod], int] = field(default_factory=dict)
    # The first key of each key that a rotation created. They share the caps of the first key.
    first_keys: dict[UUID, UUID] = field(default_factory=dict)

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

    @property
    def worst_balance(self) -> int:
        """The available credit if every call in flight has its highest possible cost."""
        return self.available - sum(one.overage_max for one in self.in_phase(Phase.HELD))

    def refusal(self, tenant: LedgerTenant, amount: int, overage_max: int = 0) -> Refusal | None:
        if tenant.key_id in self.dead_keys:
            return Refusal.KEY_NOT_ACTIVE
        if tenant.project_id in self.archived:
            return Refusal.PROJECT_ARCHIVED
        if self.available < 0 or self.available < amount:
            return Refusal.CREDIT
        if self.worst_balance - amount - overage_max < -self.overage_bound:
            return Refusal.OVERAGE_IN_FLIGHT
        mine = self.of_project(tenant.project_id)
        by_cap = self._over_cap(tenant, amount)
        if by_cap is not None:
            return by_cap
        live = sum(one.phase is Phase.HELD for one in mine)
        if live >= self.concurrency.get(tenant.project_id, 10**6):
            return Refusal.CONCURRENCY
        return None

    def reserve(self, hold: Hold) -> None:
        self.reserved[hold.id] = Reserved(hold, self.today)

    def clear_caps(self, owner: UUID | None) -> None:
        self.caps = {of: amount for of, amount in self.caps.items() if of[0] != owner}

    def first_key(self, key_id: UUID) -> UUID:
        return self.first_keys.get(key_id, key_id)

    def _over_cap(self, tenant: LedgerTenant, amount: int) -> Refusal | None:
        key = self.first_key(tenant.key_id)
        owners = (
            (None, Refusal.ORGANIZATION_CAP),
            (tenant.project_id, Refusal.PROJECT_CAP),
            (key, Refusal.KEY_CAP),
        )
        for owner, refusal in owners:
            for period in CapPeriod:
                cap = self.caps.get((owner, period))
                if cap is not None and self.counted(owner, period) + amount > cap:
                    return refusal
        return None

    def counted(self, owner: UUID | None, period: CapPeriod) -> int:
        """Returns the amount that the owner has held and spent in the current period."""
        number = number_of(period, self.today)
        return sum(
            one.blocked + one.cost
            for one in self.reserved.values()
            if owner in (None, one.hold.project_id, self.first_key(one.hold.key_id))
            and number_of(period, one.day) == number
        )
