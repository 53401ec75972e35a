"""Shows and changes caps (the most that an organization, a project or a key may spend), for
operators. Each change locks the organization's account first, so that no call is admitted with the
old values."""

from datetime import UTC, date, datetime

from tollkeeper.domain.access import KeyId, OrganizationId, ProjectId
from tollkeeper.domain.admission import AccountState, DefaultLimits
from tollkeeper.domain.caps import (
    ACCOUNT_PERIODS,
    DAY_S,
    Cap,
    CapPeriod,
    CapSubject,
    day_at,
)
from tollkeeper.domain.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.domain.ledger import LockedAccounts
from tollkeeper.domain.money import PICOUSD_MAX, usd_from_picousd
from tollkeeper.domain.months import month_of_day, month_of_number
from tollkeeper.domain.views import CapUse
from tollkeeper.services.audit import record_change
from tollkeeper.services.clock import Clock, unix_now
from tollkeeper.services.ledger.locked_account import lock_account, no_organization
from tollkeeper.storage import cap_counts, cap_resets, caps, organizations
from tollkeeper.storage.caps import CapOwner
from tollkeeper.storage.database import Connection, Database
from tollkeeper.storage.resolutions import lock_account as lock_row
from tollkeeper.storage.watched_connection import allow_long_statements

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# A reset of caps is refused if the clocks of the database and of the operator's machine differ by
# more than this.
_CLOCKS_APART_S = 3600


class Caps:
    def __init__(
        self, database: Database, limits: DefaultLimits, *, clock: Clock = unix_now
    ) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock

    async def cap_set(
        self,
        organization_id: OrganizationId,
        amount_picousd: int,
        period: CapPeriod,
        project_id: ProjectId | None = None,
        key_id: KeyId | None = None,
    ) -> CapUse:
        """Sets a cap of the organization, of a project or of a key. If the cap is below the amount
        already held and spent, new calls are rejected, and calls in flight continue. An
        organization or a project can have either a monthly or a total cap, and also a daily and a
        weekly cap. A key can have a daily, a weekly and a monthly cap."""
        if not 0 <= amount_picousd <= PICOUSD_MAX:
            raise InvalidRequest("A cap is an amount of 0 USD or more.", param="amount")
        if key_id is not None and period is CapPeriod.TOTAL:
            raise InvalidRequest("A key's cap is by day, by week or by month.", param="period")
        cap = Cap(amount_picousd, period)
        async with self._database.transaction() as connection:
            owner, locked = await self._lock(connection, organization_id, project_id, key_id)
            state = locked.states[organization_id]
            if _uses_account_counters(owner, period):
                await caps.write_account_cap(connection, owner, cap)
            else:
                await _write_period_cap(connection, owner, cap, locked)
            await _record(connection, "cap_set", owner, _cap_of(state, owner, period), cap)
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
        """Removes a cap of the key, the project or the organization itself: the cap of the given
        period or, without `period`, all caps. Succeeds even if there is no cap."""
        async with self._database.transaction() as connection:
            owner, locked = await self._lock(connection, organization_id, project_id, key_id)
            state = locked.states[organization_id]
            for cleared in CapPeriod if period is None else (period,):
                before = _cap_of(state, owner, cleared)
                if before is None or before.period is not cleared:
                    continue
                if _uses_account_counters(owner, cleared):
                    await caps.write_account_cap(connection, owner, None)
                else:
                    await caps.delete_cap(connection, owner, cleared)
                await _record(connection, "cap_clear", owner, before, None)

    async def cap_reset(self, organization_id: OrganizationId) -> list[CapUse]:
        """Makes the caps count for the present day and month again, after the database's clock ran
        ahead. Reservations (the rows of holds) that count for a later day are changed to count for
        today or, if earlier, for the day of their admission. The held and spent amounts of the
        present periods are then recounted. Changes nothing if no reservation and no counter belongs
        to a future day. Raises if the new count could be too low because rows were dropped or the
        clocks disagree."""
        async with self._database.transaction() as connection:
            await lock_row(connection, organization_id)
            dates = await cap_resets.read_dates(connection, organization_id)
            if dates is None:
                raise no_organization(organization_id)
            self._check_clock(dates.now_s)
            # The limit is one minute, because calls of the organization wait for the account's lock
            # until the reset ends. One minute suffices for millions of rows.
            await allow_long_statements(connection, minutes=1)
            today = dates.now_s // DAY_S
            moved = await cap_resets.correct_spending_days(connection, organization_id, today)
            is_ahead = max(dates.spending_day or 0, month_of_number(dates.month).first_day) > today
            if moved or is_ahead:
                await _recount(connection, organization_id, today)
                await cap_resets.correct_unfolded_months(connection, organization_id)
                await record_change(
                    connection,
                    organization_id,
                    "cap_reset",
                    "organization",
                    organization_id,
                    before=_shown_dates(dates.month, dates.spending_day),
                    after={
                        **_shown_dates(
                            month_of_day(today).number,
                            None if dates.spending_day is None else today,
                        ),
                        "moved_reservations": moved,
                    },
                )
            return await caps.find_uses(connection, organization_id)

    def _check_clock(self, now_s: int) -> None:
        machine_s = self._clock()
        if abs(machine_s - now_s) > _CLOCKS_APART_S:
            raise StateConflict(
                f"The clock of the database shows {_shown_time(now_s)}, that of this machine "
                f"{_shown_time(machine_s)}. Correct the clocks first: a reset to a past day would "
                "ignore the costs of later days."
            )

    async def cap_show(self, organization_id: OrganizationId) -> list[CapUse]:
        """Returns all caps: first the caps of the organization itself, then the caps of its
        projects, then the caps of keys."""
        async with self._database.reading() as connection:
            if await organizations.find(connection, organization_id) is None:
                raise no_organization(organization_id)
            return await caps.find_uses(connection, organization_id)

    async def cap_show_of_key(self, organization_id: OrganizationId, key_id: KeyId) -> list[CapUse]:
        """Returns the caps of one key, without the caps of its project and organization. Rotated
        keys share the caps of the first key in their chain."""
        async with self._database.reading() as connection:
            first_key_and_project = await caps.find_first_key(connection, organization_id, key_id)
            if first_key_and_project is None:
                raise NotFound(f"There is no key {key_id} in this organization.")
            return await caps.find_uses(connection, organization_id, [first_key_and_project[0]])

    async def cap_keys(
        self, organization_id: OrganizationId, first_key_id: KeyId
    ) -> tuple[KeyId, ...]:
        """Returns all rotated keys that share the caps of this first key in their chain."""
        async with self._database.reading() as connection:
            return tuple(await caps.find_keys(connection, organization_id, first_key_id))

    async def _lock(
        self,
        connection: Connection,
        organization_id: OrganizationId,
        project_id: ProjectId | None,
        key_id: KeyId | None,
    ) -> tuple[CapOwner, LockedAccounts]:
        if key_id is None:
            locked = await lock_account(connection, self._limits, organization_id, project_id)
            return CapOwner(organization_id, project_id), locked
        first_key_and_project = await caps.find_first_key(connection, organization_id, key_id)
        if first_key_and_project is None or project_id not in (None, first_key_and_project[1]):
            raise NotFound(f"There is no key {key_id} in this organization.")
        locked = await lock_account(
            connection, self._limits, organization_id, first_key_and_project[1], keys=[key_id]
        )
        return CapOwner(organization_id, first_key_and_project[1], first_key_and_project[0]), locked


def _uses_account_counters(owner: CapOwner, period: CapPeriod) -> bool:
    """Tells whether the cap uses the counters of the account: monthly and total caps of
    organizations and projects. All other caps have their own counters."""
    return owner.first_key_id is None and period in ACCOUNT_PERIODS


def _subject(owner: CapOwner) -> CapSubject:
    return owner.first_key_id or owner.project_id


def _cap_of(state: AccountState, owner: CapOwner, period: CapPeriod) -> Cap | None:
    """Returns the owner's current cap for the period. An organization or a project has either a
    monthly or a total cap, so for each of these two periods the existing cap is returned."""
    if _uses_account_counters(owner, period):
        return state.cap if owner.project_id is None else state.projects[owner.project_id].cap
    period_cap = state.period_caps.get((_subject(owner), period))
    return None if period_cap is None else Cap(period_cap.amount_picousd, period)


async def _write_period_cap(
    connection: Connection, owner: CapOwner, cap: Cap, locked: LockedAccounts
) -> None:
    state = locked.states[owner.organization_id]
    day = state.spending_day
    if day is None:
        today = day_at(locked.now_us)
        day = await caps.find_latest_day(connection, owner.organization_id, today)
    await caps.write_cap(connection, owner, cap, day)
    # A new cap starts with the amounts that were already held and settled in its current period.
    if (_subject(owner), cap.period) not in state.period_caps:
        await cap_counts.recount(connection, owner.organization_id, owner.subject_id, cap.period)


async def _recount(connection: Connection, organization_id: OrganizationId, today: int) -> None:
    """Recounts the held and settled amounts in today's periods, for the account and for each
    cap."""
    await cap_resets.begin_periods(connection, organization_id, today)
    dropped = await cap_resets.find_dropped(connection, organization_id, today)
    if dropped is not None:
        raise StateConflict(
            f"The month {dropped} was dropped, and some of its calls count for the present periods: "
            "their cost cannot be counted again."
        )
    await cap_counts.recount_month(connection, organization_id, month_of_day(today))
    await cap_counts.recount(connection, organization_id)


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


def _shown_dates(month: int, spending_day: int | None) -> dict[str, str | None]:
    day = None if spending_day is None else date.fromordinal(_EPOCH_ORDINAL + spending_day)
    return {"month": str(month_of_number(month)), "day": None if day is None else str(day)}


def _shown_time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _shown(cap: Cap | None) -> dict[str, str] | None:
    if cap is None:
        return None
    return {"amount": usd_from_picousd(cap.amount_picousd), "period": cap.period.value}
