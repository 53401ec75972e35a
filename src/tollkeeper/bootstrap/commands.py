"""The services for a command, built on first use: each administration service by itself, all others
together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from tollkeeper.bootstrap.administration import Administration
from tollkeeper.runtime.late_log import silence_logs
from tollkeeper.services.clock import unix_now
from tollkeeper.settings import Settings

if TYPE_CHECKING:
    from tollkeeper.services.use_cases import Services


@asynccontextmanager
async def command_services(settings: Settings, conninfo: str) -> AsyncIterator["Services"]:
    administration = Administration(settings, conninfo, unix_now)
    services = _ServicesOnDemand(administration)
    await administration.database.open()
    try:
        yield cast("Services", services)
    finally:
        await services.drain()
        await administration.database.close()


class _ServicesOnDemand:
    """With the attributes of `Services`."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    def __getattr__(self, name: str) -> Any:
        administration = self._administration
        if name in vars(administration) or hasattr(Administration, name):
            return getattr(administration, name)
        return getattr(self._all_services, name)

    @cached_property
    def _all_services(self) -> "Services":
        from tollkeeper.bootstrap.services import build_services

        silence_logs()  # again, because the import above has imported structlog
        return build_services(self._administration)

    async def drain(self) -> None:
        if "_all_services" in vars(self):
            from tollkeeper.bootstrap.services import drain_services

            await drain_services(self._all_services)
