"""Limits how many requests without a session wait at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from starlette.requests import Request

from tollkeeper.core.runtime.connection_limit import network_of


def network_of_client(request: Request) -> Hashable:
    return network_of("unknown" if request.client is None else request.client.host)


class Places:
    """If all places are taken, the next wait ends the oldest one of the network with the most waits.
    So nobody keeps others out by waiting, and nobody is refused while there is room."""

    def __init__(self) -> None:
        self._networks: dict[asyncio.Timeout, Hashable] = {}

    def __len__(self) -> int:
        return len(self._networks)

    @asynccontextmanager
    async def take(
        self, network: Hashable, *, places_max: int, deadline_s: float
    ) -> AsyncIterator[None]:
        """Raises TimeoutError if the wait takes too long, or has to end for another one."""
        async with asyncio.timeout(deadline_s) as timeout:
            if len(self) >= places_max:
                self._end_one()
            self._networks[timeout] = network
            try:
                yield
            finally:
                self._networks.pop(timeout, None)

    def _end_one(self) -> None:
        [(largest, _)] = Counter(self._networks.values()).most_common(1)
        oldest = next(wait for wait, network in self._networks.items() if network == largest)
        del self._networks[oldest]
        # A deadline in the past ends the wait at once.
        oldest.reschedule(0)
