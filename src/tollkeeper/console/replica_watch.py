"""Caches whether replicas (the addresses of a backend) can be reached, because probing can take
seconds."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tollkeeper.console.context import ProbedReplica

# A request for results that are older than this starts a new probe.
_FRESH_S = 5.0
# The time that a page waits for a running probe before it shows the previous results.
_PATIENCE_S = 0.25


class ReplicaWatch:
    """Returns the results of the last probe. If they are too old, first starts a new probe and
    waits for it, but only for `_PATIENCE_S`. Before the first probe ends, returns an empty list."""

    def __init__(self, probe: Callable[[], Awaitable[list[ProbedReplica]]]) -> None:
        self._probe = probe
        self._results: list[ProbedReplica] = []
        self._probed_at = float("-inf")
        self._probing: asyncio.Task[None] | None = None

    async def __call__(self) -> list[ProbedReplica]:
        if time.monotonic() - self._probed_at > _FRESH_S and self._probing is None:
            self._probing = asyncio.create_task(self._refresh())
        if self._probing is not None:
            await asyncio.wait([self._probing], timeout=_PATIENCE_S)
        return self._results

    async def _refresh(self) -> None:
        try:
            self._results = await self._probe()
        finally:
            self._probed_at = time.monotonic()
            self._probing = None
