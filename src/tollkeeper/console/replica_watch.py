"""Caches whether replicas (the addresses of a backend) can be reached, because probing can take
seconds."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tollkeeper.console.context import ProbedReplica

# The results of a probe are used for this long before the next probe starts.
_FRESH_S = 5.0
# The time that a page waits for a running probe before it shows the previous results.
_PATIENCE_S = 0.25


class ReplicaWatch:
    def __init__(self, ask: Callable[[], Awaitable[list[ProbedReplica]]]) -> None:
        self._ask = ask
        self._known: list[ProbedReplica] = []
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def __call__(self) -> list[ProbedReplica]:
        if time.monotonic() - self._asked_at > _FRESH_S and self._asking is None:
            self._asking = asyncio.create_task(self._refresh())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=_PATIENCE_S)
        return self._known

    async def _refresh(self) -> None:
        try:
            self._known = await self._ask()
        finally:
            self._asked_at = time.monotonic()
            self._asking = None
