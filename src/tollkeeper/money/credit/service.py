"""Credit and limits, for operators. Each change locks the organization's account first, so no call
is admitted with the old values."""

from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID, uuid4

from msgspec.structs import replace

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.core.money import PICOUSD_MAX, usd_from_picousd
from tollkeeper.core.reports import TIME_MAX
from tollkeeper.core.views import Balance
from tollkeeper.database.database import Connection, Database
from tollkeeper.money.credit import store as accounts
from tollkeeper.money.credit.locked_account import lock_and_fold_account, no_organization
from tollkeeper.money.credit.store import OwnLimits
from tollkeeper.money.holds import statements as ledger
from tollkeeper.money.holds.rule import (
    RATE_UNITS_PER_REQUEST,
    AccountState,
    DefaultLimits,
    ProjectState,
)
from tollkeeper.money.payments.rule import ADDING_KINDS, WITHDRAWING_KINDS, BookedGrant, GrantKind
from tollkeeper.tenants import projects_store as projects
from tollkeeper.tenants.audit.service import record_change

_NOTE_LENGTH_MAX = 1000
GRANTS_PAGE_MAX = 1000
REQUESTS_PER_MINUTE_MAX = 10_000_000
CONCURRENCY_MAX = 1_000_000

# "default" is the settings' default, None means no change.
LimitChange: TypeAlias = int | Literal["default"] | None


@dataclass(frozen=True, slots=True)
class Grant:
    id: UUID
    organization_id: OrganizationId
    amount_picousd: int
    kind: GrantKind
    note: str
    balance: Balance


@dataclass(frozen=True, slots=True)
class Limit:
    value: int
    is_default: bool


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    project_id: ProjectId
    requests_per_minute: Limit
    concurrency: Limit
    live_holds: int


@dataclass(frozen=True, slots=True)
class OverageUse:
    balance_picousd: int
    overage_picousd: int
    bound_picousd: int | None
    is_default: bool
    # Balance below minus the bound: no calls until an operator runs `overage clear`.
    stopped: bool


class Accounts:
    def __init__(self, database: Database, limits: DefaultLimits) -> None:
        self._database = database
        self._limits = limits

    async def credit_check(
        self,
        organization_id: OrganizationId,
        amount_picousd: int,
        note: str,
        kind: GrantKind | None,
    ) -> int:
        """Raises what `credit_grant` would raise now. Returns the available credit."""
        _checked_kind(amount_picousd, kind, note)
        available = (await self.credit_show(organization_id)).available_picousd
        _require_withdrawable(available, amount_picousd)
        return available

    async def credit_grant(
        self,
        organization_id: OrganizationId,
        amount_picousd: int,
        note: str = "",
        kind: GrantKind | None = None,
        *,
        grant_id: UUID | None = None,
        within: Connection | None = None,
    ) -> Grant:
        """A negative amount withdraws, at most the available credit. A second grant with the same
        `grant_id` raises StateConflict."""
        kind = _checked_kind(amount_picousd, kind, note)
        async with self._database.transaction(within=within) as connection:
            state = await self._lock(connection, organization_id)
            _require_withdrawable(state.available_picousd, amount_picousd)
            return await book_grant(
                connection,
                organization_id,
                state,
                amount_picousd,
                kind,
                note,
                grant_id=grant_id,
            )

    async def credit_list(
        self,
        organization_id: OrganizationId,
        *,
        until: int = TIME_MAX,
        limit: int = 100,
    ) -> list[BookedGrant]:
        assert 1 <= limit <= GRANTS_PAGE_MAX
        async with self._database.autocommit(organization_id) as connection:
            if await accounts.find_balance(connection, organization_id) is None:
                raise no_organization(organization_id)
            return await accounts.find_grants(connection, organization_id, until, limit)

    async def credit_show(self, organization_id: OrganizationId) -> Balance:
        """Includes settlements that aren't folded into the account row yet."""
        async with self._database.autocommit() as connection:
            balance = await accounts.find_balance(connection, organization_id)
        if balance is None:
            raise no_organization(organization_id)
        return balance

    async def overage_set(
        self, organization_id: OrganizationId, bound_picousd: int | None
    ) -> OverageUse:
        """None means the settings' default. The next admission stops the organization if it's below
        the bound. Doesn't end a stop."""
        if bound_picousd is not None and not 0 <= bound_picousd <= PICOUSD_MAX:
            raise InvalidRequest("A bound is an amount of 0 USD or more.", param="bound")
        async with self._database.transaction() as connection:
            await self._lock(connection, organization_id)
            before = await self._overage(connection, organization_id)
            await accounts.write_overage_bound(connection, organization_id, bound_picousd)
            after = await self._overage(connection, organization_id)
            await _record_overage(connection, "overage_set", organization_id, before, after)
        return after

    async def overage_clear(self, organization_id: OrganizationId) -> OverageUse:
        """The balance must be within the bound."""
        async with self._database.transaction() as connection:
            state = await self._lock(connection, organization_id)
            if state.is_below_bound:
                raise StateConflict(
                    f"The balance is {usd_from_picousd(state.balance_picousd)} USD, still below "
                    f"the bound of {usd_from_picousd(-(state.overage_bound_picousd or 0))} USD: "
                    "grant credit or set another bound first."
                )
            before = await self._overage(connection, organization_id)
            cleared = replace(state, stopped=False)
            await ledger.write_states(connection, {organization_id: cleared})
            after = await self._overage(connection, organization_id)
            await _record_overage(connection, "overage_clear", organization_id, before, after)
        return after

    async def overage_show(self, organization_id: OrganizationId) -> OverageUse:
        async with self._database.autocommit() as connection:
            return await self._overage(connection, organization_id)

    async def _overage(self, connection: Connection, organization_id: OrganizationId) -> OverageUse:
        stored = await accounts.find_overage(connection, organization_id)
        if stored is None:
            raise no_organization(organization_id)
        default = self._limits.overage_bound_picousd
        own = stored.own_bound_picousd
        return OverageUse(
            balance_picousd=stored.balance_picousd,
            overage_picousd=stored.overage_picousd,
            bound_picousd=default if own is None else own,
            is_default=own is None,
            stopped=stored.stopped,
        )

    async def limit_set(
        self,
        project_id: ProjectId,
        requests_per_minute: LimitChange = None,
        concurrency: LimitChange = None,
    ) -> LimitsInForce:
        _check_limit(requests_per_minute, REQUESTS_PER_MINUTE_MAX, "requests_per_minute")
        _check_limit(concurrency, CONCURRENCY_MAX, "concurrency")
        organization_id = await self._organization_of(project_id)
        async with self._database.transaction() as connection:
            state = await self._lock(connection, organization_id, project_id)
            own = await accounts.find_limits(connection, organization_id, project_id)
            rate = _changed(own.requests_per_minute, requests_per_minute)
            await accounts.write_limits(
                connection,
                organization_id,
                project_id,
                rate,
                _changed(own.concurrency, concurrency),
            )
            project = _with_rate(
                state.projects[project_id], rate or self._limits.requests_per_minute
            )
            changed = replace(state, projects={project_id: project})
            await ledger.write_states(connection, {organization_id: changed})
            await record_change(
                connection,
                organization_id,
                "limit_set",
                "limit",
                project_id,
                before=_own_limits(own),
                after=_own_limits(
                    await accounts.find_limits(connection, organization_id, project_id)
                ),
            )
            return await self._limits_in_force(connection, organization_id, project_id)

    async def limit_show(self, project_id: ProjectId) -> LimitsInForce:
        organization_id = await self._organization_of(project_id)
        async with self._database.autocommit() as connection:
            return await self._limits_in_force(connection, organization_id, project_id)

    async def _limits_in_force(
        self, connection: Connection, organization_id: OrganizationId, project_id: ProjectId
    ) -> LimitsInForce:
        own = await accounts.find_limits(connection, organization_id, project_id)
        return LimitsInForce(
            project_id,
            _limit(own.requests_per_minute, self._limits.requests_per_minute),
            _limit(own.concurrency, self._limits.concurrency),
            own.live_holds,
        )

    async def _organization_of(self, project_id: ProjectId) -> OrganizationId:
        async with self._database.autocommit() as connection:
            project = await projects.find_anywhere(connection, project_id)
        if project is None:
            raise NotFound(f"There is no project {project_id}.")
        return project.organization_id

    async def _lock(
        self,
        connection: Connection,
        organization_id: OrganizationId,
        project_id: ProjectId | None = None,
    ) -> AccountState:
        locked = await lock_and_fold_account(connection, self._limits, organization_id, project_id)
        return locked.states[organization_id]


async def _record_overage(
    connection: Connection,
    operation: str,
    organization_id: OrganizationId,
    before: OverageUse,
    after: OverageUse,
) -> None:
    if before != after:
        await record_change(
            connection,
            organization_id,
            operation,
            "overage",
            organization_id,
            before=_shown_overage(before),
            after=_shown_overage(after),
        )


def _shown_overage(use: OverageUse) -> dict[str, str | bool | None]:
    bound = use.bound_picousd
    return {
        "bound": None if bound is None else usd_from_picousd(bound),
        "is_default": use.is_default,
        "stopped": use.stopped,
    }


def _own_limits(own: OwnLimits) -> dict[str, int | None]:
    return {"requests_per_minute": own.requests_per_minute, "concurrency": own.concurrency}


async def book_grant(
    connection: Connection,
    organization_id: OrganizationId,
    state: AccountState,
    amount_picousd: int,
    kind: GrantKind,
    note: str,
    payment_id: str | None = None,
    grant_id: UUID | None = None,
) -> Grant:
    """The caller has locked the account."""
    _check_total(state, amount_picousd)
    grant_id = grant_id or uuid4()
    if not await accounts.insert_grant(
        connection, organization_id, grant_id, amount_picousd, kind, note, payment_id
    ):
        raise StateConflict("The credit was changed before; nothing was changed a second time.")
    balance = await accounts.find_balance(connection, organization_id)
    assert balance is not None
    await record_change(
        connection,
        organization_id,
        "credit_grant",
        "credit",
        organization_id,
        before={"available": usd_from_picousd(balance.available_picousd - amount_picousd)},
        after={
            "available": usd_from_picousd(balance.available_picousd),
            "grant": usd_from_picousd(amount_picousd),
            "kind": kind,
            "note": note,
        },
    )
    return Grant(grant_id, organization_id, amount_picousd, kind, note, balance)


def _checked_kind(amount_picousd: int, kind: GrantKind | None, note: str) -> GrantKind:
    """Returns the kind of a change of credit. Raises InvalidRequest if there is no such change."""
    if amount_picousd == 0:
        raise InvalidRequest("A grant of 0 USD changes nothing.", param="amount")
    if len(note) > _NOTE_LENGTH_MAX or "\x00" in note:
        raise InvalidRequest(f"A note has at most {_NOTE_LENGTH_MAX} characters.", param="note")
    kinds = ADDING_KINDS if amount_picousd > 0 else WITHDRAWING_KINDS
    if kind not in (None, *kinds):
        raise InvalidRequest(
            f"Credit that is {'added' if amount_picousd > 0 else 'withdrawn'} is of the kind "
            f"{', '.join(kinds)}.",
            param="kind",
        )
    return kind or kinds[0]


def _require_withdrawable(available_picousd: int, amount_picousd: int) -> None:
    """Raises StateConflict if the change would withdraw more than is available."""
    if amount_picousd < 0 and available_picousd + amount_picousd < 0:
        raise StateConflict(
            f"{usd_from_picousd(-amount_picousd)} USD cannot be withdrawn: "
            f"{usd_from_picousd(available_picousd)} USD is available."
        )


def _check_total(state: AccountState, amount_picousd: int) -> None:
    spend = state.spend
    granted = state.balance_picousd + spend.settled_picousd
    if granted + amount_picousd > PICOUSD_MAX:
        raise InvalidRequest(
            f"An organization's credit is at most {usd_from_picousd(PICOUSD_MAX)} USD in all.",
            param="amount",
        )


def _check_limit(change: LimitChange, highest: int, name: str) -> None:
    if isinstance(change, int) and not 1 <= change <= highest:
        raise InvalidRequest(f"{name} is a number from 1 to {highest}.", param=name)


def _changed(own: int | None, change: LimitChange) -> int | None:
    if change is None:
        return own
    return None if change == "default" else change


def _limit(own: int | None, default: int) -> Limit:
    return Limit(default, is_default=True) if own is None else Limit(own, is_default=False)


def _with_rate(project: ProjectState, requests_per_minute: int) -> ProjectState:
    """A full bucket stays full at the new rate: a project without recent requests gets a full
    burst."""
    was_full = project.rate_units >= project.requests_per_minute * RATE_UNITS_PER_REQUEST
    full = requests_per_minute * RATE_UNITS_PER_REQUEST
    level = full if was_full else min(project.rate_units, full)
    return replace(project, requests_per_minute=requests_per_minute, rate_units=level)
