"""What a serving process does beside answering: small chores, each on its own interval."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.services.idempotency import Idempotency
from tollkeeper.services.key_use import KeyUse
from tollkeeper.storage.database import Database

_KEY_USE_INTERVAL_S = 10
_SECRETS_INTERVAL_S = 60

_log = structlog.get_logger("tollkeeper.upkeep")


class Upkeep:
    def __init__(self, database: Database, key_use: KeyUse, idempotency: Idempotency) -> None:
        self._database = database
        self._key_use = key_use
        self._idempotency = idempotency
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(_repeat(_KEY_USE_INTERVAL_S, self.write_key_use)),
            asyncio.create_task(_repeat(_SECRETS_INTERVAL_S, self.forget_secrets)),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _attempt(self.write_key_use)

    async def write_key_use(self) -> None:
        await self._key_use.write(self._database)

    async def forget_secrets(self) -> None:
        await self._idempotency.forget_old_secrets(self._database)


async def _repeat(interval_s: float, chore: Callable[[], Awaitable[None]]) -> None:
    while True:
        await _attempt(chore)
        await asyncio.sleep(interval_s)


async def _attempt(chore: Callable[[], Awaitable[None]]) -> None:
    """A chore that fails is done again at its next turn; it must not take the process with it."""
    try:
        await chore()
    except TollkeeperError as exc:
        _log.warning("upkeep failed", chore=chore.__name__, reason=exc.message)
