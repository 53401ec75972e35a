"""Runs a worker process, which serves the public API on a socket that the supervisor (the parent process)
has bound.

The supervisor sends instructions through the channel that `hosting.worker_process` describes: first the
socket and the instruction `start`, later an instruction `settings` for each changed model catalogue.
"""

import asyncio
import contextlib
import gc
import json
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

if __name__ == "__main__":
    # Prevents structlog from importing rich for coloured tracebacks, which no worker writes. The
    # import would take a tenth of the start time and several megabytes of memory.
    sys.modules["rich"] = None  # type: ignore[assignment]
    from tollkeeper.entry.metrics_files import reserve_space

    reserve_space()

import msgspec
import structlog
import uvloop
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.runtime.overload import LoopSampler
from tollkeeper.core.runtime.tallies import write_tallies
from tollkeeper.entry.descriptors import http_limits
from tollkeeper.entry.free_memory import MemoryTrimmer
from tollkeeper.entry.logs import configure_logs
from tollkeeper.entry.shutdown import shut_down
from tollkeeper.entry.worker_process import REPORT_INTERVAL_S, received_listener
from tollkeeper.http.arrivals import fair_arrivals
from tollkeeper.http.http_server import HttpServer
from tollkeeper.setup import Services, build_app, build_catalog, running_services
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.settings import Settings

# The number of new objects after which Python starts a garbage collection.
_COLLECTION_THRESHOLD = 20_000
_REGISTER_TIMEOUT_S = 2.0
# The maximum size of one instruction from the supervisor.
_INSTRUCTION_BYTES_MAX = 16 * 1024 * 1024
_log = structlog.get_logger("tollkeeper.entry.worker")


class ResolvedSettings(Settings):
    """Contains the settings as the supervisor has read them. Does not read the environment again."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class Stopping(asyncio.Event):
    """Is set when the worker has to stop."""

    def set_as_outdated(self, reason: str) -> None:
        if not self.is_set():
            _log.error("this worker stops when its calls have ended", reason=reason)
        self.set()


class Worker:
    def __init__(self, settings: Settings, services: Services, stopping: Stopping) -> None:
        self._settings = settings
        self._services = services
        self._stopping = stopping

    async def run(
        self,
        listener: socket.socket,
        instructions: asyncio.StreamReader,
        reports: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._register()
        app = build_app(self._settings, self._services)
        gate, ledger = self._services.inference.overload, self._services.ledger
        inference = self._services.inference
        arrivals = fair_arrivals(inference.serves_others, lambda: inference.overload.is_full)
        server = HttpServer(app, http_limits(), arrivals, app.error_style)
        self._services.upkeep.start()

        # Runs `callback` after two steps: first, all calls that now wait for ledger results get them;
        # then all requests that wait at that time begin.
        def call_after_waiting(callback: Callable[[], None]) -> None:
            ledger.handout.call_after_waiting(partial(arrivals.turns.call_after_waiting, callback))

        LoopSampler(gate, lambda: ledger.backlog, call_after_waiting).start()
        memory = MemoryTrimmer(is_busy=lambda: gate.limit is not None)
        memory.start()
        await server.start(listener)
        following = loop.create_task(self._follow_instructions(instructions))
        _reduce_collections()
        reporting = loop.create_task(self._report(reports))
        await self._stopping.wait()
        if self._settings.server.stop_delay_s:
            await server.prepare_stop(self._settings.server.stop_delay_s)
        following.cancel()
        reporting.cancel()
        memory.stop()
        await asyncio.gather(following, reporting, return_exceptions=True)
        await shut_down(
            server,
            self._services.inference,
            self._services.ledger,
            self._services.upkeep,
            self._services.lease,
            grace_s=self._settings.server.grace_s,
        )
        write_tallies()

    async def _register(self) -> None:
        """Registers the process in the database with a heartbeat, and tests whether holds (the amounts
        reserved before calls) can be written.

        The process registers before its first call, so that no migration removes tables or columns that this
        code needs. If the database is down, calls are rejected anyway, and the background work (`Upkeep`)
        registers the process and tests holds later.
        """
        with contextlib.suppress(TollkeeperError, TimeoutError):
            async with asyncio.timeout(_REGISTER_TIMEOUT_S):
                await self._services.lease.heartbeat()
                await self._services.ledger.try_hold()

    async def _report(self, reports: asyncio.StreamWriter) -> None:
        """Reports to the supervisor at an interval whether holds can be written, for `/readyz`. Skips a
        report if an earlier report is still unsent, which means that the supervisor is not reading."""
        while True:
            if not reports.transport.get_write_buffer_size():
                state = self._services.ledger.hold_writes.state
                reports.write(msgspec.json.encode(state) + b"\n")
            await asyncio.sleep(REPORT_INTERVAL_S)

    async def _follow_instructions(self, instructions: asyncio.StreamReader) -> None:
        while line := await instructions.readline():
            instruction = json.loads(line)
            assert instruction["kind"] == "settings"
            self._services.catalog.catalog = build_catalog(_settings_from(instruction))
            _log.info("catalogue reloaded", models=len(self._services.catalog.catalog.models))
        # The channel is closed, so the supervisor has ended. This worker stops too, because no
        # process would restart or stop it any more.
        self._stopping.set()


def _settings_from(instruction: dict[str, Any]) -> Settings:
    return ResolvedSettings(**instruction["settings"])


def _reduce_collections() -> None:
    """Makes garbage collections rare and small.

    The objects that exist now live as long as the process. They are frozen, so that collections skip them.
    By default, Python starts a collection after far fewer new objects (700 in Python 3.11). The collection
    would find nothing, because the hundreds of objects of a call have no reference cycles and are freed by
    reference counting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD, 20, 20)


async def _main(channel: socket.socket, listener: socket.socket) -> None:
    instructions, reports = await asyncio.open_connection(
        sock=channel, limit=_INSTRUCTION_BYTES_MAX
    )
    start = json.loads(await instructions.readline())
    settings = _settings_from(start)
    configure_logs()
    engine = EngineAddress(**start["engine"]) if start["engine"] is not None else None
    stopping = Stopping()
    async with running_services(
        *(settings, start["conninfo"]),
        engine=engine,
        serving=True,
        on_outdated=stopping.set_as_outdated,
    ) as services:
        await Worker(settings, services, stopping).run(listener, instructions, reports)


if __name__ == "__main__":
    supervisor_channel = socket.socket(fileno=int(sys.argv[1]))
    public_listener = received_listener(supervisor_channel)
    if public_listener is not None:
        uvloop.run(_main(supervisor_channel, public_listener))
