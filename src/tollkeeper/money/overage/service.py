"""Remembers which models lately cost more than their holds, so that admission expects it again.
Settlements write the cases in their own transaction, and each process reads everybody's every few
seconds: a process protects itself at once, the others soon."""

import asyncio
from collections.abc import Sequence

from tollkeeper.core.errors import NotFound, Unavailable
from tollkeeper.core.runtime.clock import Clock, unix_now
from tollkeeper.database.database import Database
from tollkeeper.database.reachability import RETRY_AFTER_S
from tollkeeper.money.overage import store as excesses
from tollkeeper.money.overage.rule import Excess, by_model
from tollkeeper.tenants.audit.service import record_change

# The next run tries again.
_LOAD_TIMEOUT_S = 5.0
# A case isn't written if one as large was noted this recently. Otherwise all settlements of a model
# that always exceeds would wait for one row.
_REPEATED_S = 3600


class Excesses:
    def __init__(self, database: Database, clock: Clock = unix_now) -> None:
        self._database = database
        self._clock = clock
        self._by_model: dict[str, tuple[Excess, ...]] = {}
        # Cases that a running load may not have seen; None if none runs.
        self._noted_meanwhile: list[Excess] | None = None
        self._loading = asyncio.Lock()
        self._loads_ended = 0
        self.loaded = False
        # Loaded, and no model has lately exceeded a hold: then a call needn't ask.
        self.is_quiet = False

    def of(self, model: str) -> tuple[Excess, ...]:
        return self._by_model.get(model, ())

    async def expected_of(self, model: str) -> tuple[Excess, ...]:
        if not self.loaded:
            await self.load_first()
        return self.of(model)

    def is_news(self, case: Excess) -> bool:
        return not any(
            known.backend == case.backend
            and case.at - known.at < _REPEATED_S
            and not case.exceeds(known)
            for known in self.of(case.model)
        )

    def note(self, case: Excess) -> None:
        self._by_model |= by_model((*self.of(case.model), case))
        self.is_quiet = False
        if self._noted_meanwhile is not None:
            self._noted_meanwhile.append(case)

    async def load_first(self) -> None:
        """Otherwise a new process would admit a burst that the others refuse. Calls that arrive
        during a load share its failure, so none waits for earlier ones' deadlines."""
        ended = self._loads_ended
        async with self._loading:
            if self.loaded:
                return
            if self._loads_ended != ended:
                raise _busy()
            await self._load()

    async def load(self) -> None:
        """What an operator has forgotten is then gone here too."""
        async with self._loading:
            await self._load()

    async def overage_models(self) -> Sequence[Excess]:
        """Those that still count, newest first, one per model, backend and day."""
        async with self._database.autocommit() as connection:
            return await excesses.find_recent(connection, self._clock())

    async def overage_forget(self, model: str, backend: str | None = None) -> None:
        """No backend means all. For example once the settings are corrected. Gateways follow within
        seconds."""
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
        self.is_quiet = not self._by_model
        self.loaded = True


def _busy() -> Unavailable:
    return Unavailable("The database is busy; try again.", retry_after_s=RETRY_AFTER_S)
