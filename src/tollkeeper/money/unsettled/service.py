"""Verifies the ledger, and lists and resolves single unsettled reservations, for operators."""

from uuid import UUID

from tollkeeper.core.errors import InvalidRequest, NotFound, StateConflict
from tollkeeper.core.money import PICOUSD_MAX, usd_from_picousd
from tollkeeper.core.views import ReservationEntry, ReservationStatus
from tollkeeper.database.database import Database
from tollkeeper.money.holds.values import Resolution, ResolutionKind
from tollkeeper.money.months.service import dropped_message, find_dropped
from tollkeeper.money.settlement import reservations
from tollkeeper.money.settlement import store as resolutions
from tollkeeper.money.verification import store as verification
from tollkeeper.money.verification.service import Difference, Progress, Verification
from tollkeeper.money.verification.store import Ages
from tollkeeper.tenants.audit.service import record_change

UNSETTLED_LIST_MAX = 1000
_RESOLVED_BY = "operator"
# Beyond this many holds, a cost needs a confirmation: the hold is the highest expected cost, so
# it's probably a typing error.
_UNCONFIRMED_HOLDS_MAX = 2


class FarAboveHold(StateConflict):
    """Raised if the cost is far above the hold and the operator did not confirm it. Nothing was
    changed."""


class Reconciliation:
    def __init__(self, database: Database, ages: Ages) -> None:
        self._database = database
        self._verification = Verification(database, ages)

    async def ledger_verify(
        self, *, full: bool = False, on_progress: Progress = lambda _done, _all: None
    ) -> list[Difference]:
        """Stores the number of differences. An empty list means that all invariants hold."""
        differences = await self._verification.verify(full=full, on_progress=on_progress)
        async with self._database.transaction() as connection:
            await verification.write_verification(connection, len(differences))
        return differences

    async def ledger_unsettled(
        self, *, models: tuple[str, ...] | None = None, limit: int = UNSETTLED_LIST_MAX
    ) -> list[ReservationEntry]:
        """Oldest first; None means any model."""
        async with self._database.autocommit() as connection:
            return await reservations.find_unsettled(connection, models, limit=limit)

    async def ledger_resolve(
        self, reservation_id: UUID, *, settle_picousd: int | None, confirmed: bool = False
    ) -> ReservationEntry:
        """None releases. StateConflict if it isn't unsettled (any more), `FarAboveHold` if the cost
        is more than twice the hold and not `confirmed`."""
        if settle_picousd is not None and not 0 <= settle_picousd <= PICOUSD_MAX:
            raise InvalidRequest("A settlement is an amount of 0 USD or more.", param="settle")
        reservation = await self._find(reservation_id)
        if reservation.status is not ReservationStatus.UNSETTLED:
            raise _not_unsettled(reservation)
        if (
            not confirmed
            and (settle_picousd or 0) > _UNCONFIRMED_HOLDS_MAX * reservation.hold_picousd
        ):
            raise _far_above_hold(reservation, settle_picousd or 0)
        released = settle_picousd is None
        resolution = Resolution(
            organization_id=reservation.organization_id,
            reservation_id=reservation_id,
            kind=ResolutionKind.RELEASED if released else ResolutionKind.SETTLED,
            resolved_by=_RESOLVED_BY,
            other=settle_picousd or 0,
        )
        async with self._database.transaction() as connection:
            resolved = await resolutions.resolve(connection, [resolution])
            after = await reservations.find(connection, reservation_id)
            assert after is not None, "a month with an unsettled reservation is never dropped"
            if reservation_id not in resolved:
                raise _not_unsettled(after)
            await record_change(
                connection,
                reservation.organization_id,
                "ledger_resolve",
                "reservation",
                reservation_id,
                before=_shown(reservation),
                after=_shown(after),
            )
        return after

    async def _find(self, reservation_id: UUID) -> ReservationEntry:
        async with self._database.autocommit() as connection:
            reservation = await reservations.find(connection, reservation_id)
            dropped = (
                None if reservation is not None else await find_dropped(connection, reservation_id)
            )
        if dropped is not None:
            raise NotFound(f"There is no reservation {reservation_id}. {dropped_message(dropped)}")
        if reservation is None:
            raise NotFound(f"There is no reservation {reservation_id}.")
        return reservation


def _shown(entry: ReservationEntry) -> dict[str, str | None]:
    cost = entry.cost_picousd
    return {
        "settlement": entry.status.value,
        "hold": usd_from_picousd(entry.hold_picousd),
        "cost": None if cost is None else usd_from_picousd(cost),
    }


def _far_above_hold(reservation: ReservationEntry, settle_picousd: int) -> FarAboveHold:
    hold, cost = usd_from_picousd(reservation.hold_picousd), usd_from_picousd(settle_picousd)
    return FarAboveHold(
        f"{cost} USD for the reservation {reservation.id} is more than twice its hold of {hold} USD. "
        f"Confirm it: `tollkeeper ledger resolve {reservation.id} --settle {cost} --yes`."
    )


def _not_unsettled(reservation: ReservationEntry) -> StateConflict:
    if reservation.status is ReservationStatus.HELD:
        return StateConflict(
            f"The reservation {reservation.id} is held: its call may still be running. "
            "Holds of dead processes become unsettled by `ledger recover`."
        )
    return StateConflict(
        f"The reservation {reservation.id} was {reservation.status} already, by {reservation.resolved_by}."
    )
