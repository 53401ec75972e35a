"""Verifies the ledger every day, in one process at a time. Pauses between the slices (the parts
that one transaction verifies), so that traffic is not slowed down."""

import structlog

from tollkeeper.services.ledger.verification import Verification
from tollkeeper.storage import money_totals
from tollkeeper.storage.database import Database
from tollkeeper.storage.verification import Ages

EVERY_HOURS = 24
# The pause after a slice is four times as long as the slice took, so that verification loads one
# connection for a fifth of the time.
_REST = 4.0
# The maximum number of differences that are logged.
_LOGGED_MAX = 10

_log = structlog.get_logger("tollkeeper.ledger")


class RegularVerification:
    def __init__(self, database: Database, ages: Ages) -> None:
        self._database = database
        self._verification = Verification(database, ages, rest=_REST)

    async def verify_if_due(self) -> bool:
        """Verifies the ledger unless it was verified within `EVERY_HOURS`, by any process or by
        `ledger verify`. Does nothing while another process verifies it. Returns whether this
        process has verified the ledger now."""
        async with (
            self._database.autocommit() as connection,
            money_totals.verification_lock(connection) as has_lock,
        ):
            if not has_lock or not await money_totals.verification_is_due(connection, EVERY_HOURS):
                return False
            # On the same connection, because a second one may be the last of the pool.
            differences = await self._verification.verify_on(connection)
            await money_totals.write_verification(connection, len(differences))
        for difference in differences[:_LOGGED_MAX]:
            _log.error(
                "the ledger has a difference",
                invariant=difference.invariant,
                subject=difference.subject,
                detail=difference.detail,
            )
        _log.info("the ledger was verified", differences=len(differences))
        return True
