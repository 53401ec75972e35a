"""Records whether this process can write holds (the amounts reserved before calls), and why it
cannot."""

import asyncio
from dataclasses import dataclass

from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.storage.database import Contention, operator_reason
from tollkeeper.storage.ledger_store import AccountBusy

# Errors that one organization can cause, and that do not affect the holds of other organizations.
_ORGANIZATION_ERRORS = (AccountBusy, Contention)


@dataclass(frozen=True, slots=True)
class HoldWriteState:
    # The time since a hold was last written, or written and rolled back as a check; None if no hold
    # was written yet.
    written_s_ago: float | None
    # The reason why the last attempt failed, for operators; None if no attempt was made or the last
    # attempt succeeded.
    failure: str | None


class HoldWrites:
    def __init__(self) -> None:
        self._written_at: float | None = None
        self._failure: str | None = None

    @property
    def state(self) -> HoldWriteState:
        written_at = self._written_at
        age_s = None if written_at is None else asyncio.get_running_loop().time() - written_at
        return HoldWriteState(age_s, self._failure)

    def succeeded(self) -> None:
        self._written_at = asyncio.get_running_loop().time()
        self._failure = None

    def failed(self, error: TollkeeperError) -> None:
        """Records the error, unless it is one that a single organization can cause."""
        if not isinstance(error, _ORGANIZATION_ERRORS):
            self._failure = operator_reason(error)
