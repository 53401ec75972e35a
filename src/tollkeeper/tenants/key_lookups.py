"""Looks up many API keys in one SQL statement. Lookups that arrive while one runs wait for the
next, so none returns data read before it began. All organizations share the statements, because
nobody knows a key's organization yet."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from tollkeeper.core.errors import Unavailable
from tollkeeper.core.runtime.batches import Batches, Limit, copy_of_error
from tollkeeper.database.database import Database, RoundTrips

_BATCH_MAX = 256
_WAITING_MAX = 20_000


class StoredKey(Protocol):
    @property
    def digest(self) -> bytes: ...


K = TypeVar("K", bound=StoredKey)


class _Lookup(Generic[K]):
    __slots__ = ("digest", "result")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.result: asyncio.Future[K | None] = asyncio.get_running_loop().create_future()


class KeyLookups(Generic[K]):
    def __init__(
        self,
        database: Database,
        find_by_digests: Callable[[RoundTrips, list[bytes]], Awaitable[Sequence[K]]],
    ) -> None:
        self._database = database
        self._find_by_digests = find_by_digests
        self._batches: Batches[_Lookup[K]] = Batches(
            self._read, name="key lookups", batch=Limit(_BATCH_MAX), give_up=_give_up
        )

    async def find(self, digest: bytes) -> K | None:
        """As it is in the database now. Raises Unavailable if too many lookups wait."""
        if self._batches.queued >= _WAITING_MAX:
            raise Unavailable("The database is busy; try again.", retry_after_s=2)
        lookup: _Lookup[K] = _Lookup(digest)
        self._batches.add(lookup)
        return await lookup.result

    async def _read(self, batch: list[_Lookup[K]]) -> None:
        waiting = [lookup for lookup in batch if not lookup.result.done()]
        if not waiting:
            return  # All clients have disconnected.
        try:
            async with self._database.round_trips() as trips:
                found = await self._find_by_digests(
                    trips, list({lookup.digest for lookup in waiting})
                )
        except Exception as exc:  # noqa: BLE001 - passed on to the waiting lookups
            for lookup in waiting:
                _fail(lookup, exc)
            return
        by_digest = {key.digest: key for key in found}
        for lookup in waiting:
            if not lookup.result.done():
                lookup.result.set_result(by_digest.get(lookup.digest))


def _give_up(batch: Sequence[_Lookup[K]]) -> None:
    for lookup in batch:
        _fail(lookup, Unavailable("The gateway is shutting down."))


def _fail(lookup: _Lookup[K], error: Exception) -> None:
    if not lookup.result.done():
        lookup.result.set_exception(copy_of_error(error))
