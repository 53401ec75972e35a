"""Remembers which models have lately cost more than their holds, so that admission expects it again.

A settlement that exceeds its hold writes the case in its own transaction. Each process reads the
cases of all processes every few seconds, so a process protects itself at once, and the others soon.
"""

import asyncio
from collections.abc import Sequence

from tollkeeper.domain.errors import NotFound, Unavailable
from tollkeeper.domain.excess import Excess, by_model
from tollkeeper.services.audit import record_change
from tollkeeper.services.clock import Clock, unix_now
from tollkeeper.storage import excesses
from tollkeeper.storage.database import Database
from tollkeeper.storage.reachability import RETRY_AFTER_S

# The time after which a process stops waiting for the database. The next run tries again.
_LOAD_TIMEOUT_S = 5.0
# A case is not written if a case at least as large was noted within this time. So a model that always
# exceeds its holds does not make all settlements of all processes wait for one row.
_REPEATED_S = 3600


class Excesses:
    def __init__(self, database: Database, clock: Clock = unix_now) -> None:
        self._database = database
        self._clock = clock
        self._by_model: dict[str, tuple[Excess, ...]] = {}
        # The cases of this process that the load in progress may not have seen; None if there is no
        # load in progress.
        self._noted_meanwhile: list[Excess] | None = None
        self._loading = asyncio.Lock()
        self._loads_ended = 0
        # Whether the database was read at least once.
        self.loaded = False

    def of(self, model: str) -> tuple[Excess, ...]:
        return self._by_model.get(model, ())

    def is_news(self, case: Excess) -> bool:
        return not any(
            known.backend == case.backend
            and case.at - known.at < _REPEATED_S
            and not case.exceeds(known)
            for known in self.of(case.model)
        )

    def note(self, case: Excess) -> None:
        self._by_model |= by_model((*self.of(case.model), case))
        if self._noted_meanwhile is not None:
            self._noted_meanwhile.append(case)

    async def load_first(self) -> None:
        """Waits until the database was read once. Otherwise a new process would admit a burst that
        the other processes refuse. Calls that arrive during a load share its failure; otherwise each
        would wait for the deadlines of all earlier ones."""
        ended = self._loads_ended
        async with self._loading:
            if self.loaded:
                return
            if self._loads_ended != ended:
                raise _busy()
            await self._load()

    async def load(self) -> None:
        """Reads the cases of all processes. Cases that an operator has forgotten are then gone."""
        async with self._loading:
            await self._load()

    async def overage_models(self) -> Sequence[Excess]:
        """Returns the cases that still count, newest first, at most one for each model, backend and
        day."""
        async with self._database.autocommit() as connection:
            return await excesses.find_recent(connection, self._clock())

    async def overage_forget(self, model: str, backend: str | None = None) -> None:
        """Forgets the cases of a model, at one backend or at all, for example because its settings
        were corrected. Each gateway follows within seconds."""
        async with self._database.transaction() as connection:
            forgotten = await excesses.forget(connection, model, backend)
            if not forgotten:
                at = "" if backend is None else f" at the backend {backend}"
                raise NotFound(f"No call to the model {model}{at} has exceeded its hold lately.")
            before = {"backend": backend, "days": forgotten}
            await record_change(connection, None, "overage_forget", "model", model, before=before)

    async def _load(self) -> None:
        noted = self._noted_meanwhile = []
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                found = await self.overage_models()
        except TimeoutError:
            raise _busy() from None
        finally:
            self._noted_meanwhile = None
            self._loads_ended += 1
        self._by_model = by_model((*found, *noted))
        self.loaded = True


def _busy() -> Unavailable:
    return Unavailable("The database is busy; try again.", retry_after_s=RETRY_AFTER_S)
