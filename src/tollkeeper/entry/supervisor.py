"""The parent process of a gateway: starts the workers, the engine and the operator listener, restarts a dead
worker or embedded database, sends a changed catalogue to the workers, and stops everything at the end."""

import asyncio
import contextlib
import dataclasses
import signal
import socket
from collections.abc import Callable

import psycopg
import structlog
from prometheus_client.multiprocess import mark_process_dead

from tollkeeper.core.errors import StateConflict, TollkeeperError, Unavailable
from tollkeeper.database.compatibility import SchemaState
from tollkeeper.database.fence import Fence, ServerFenced
from tollkeeper.database.reachability import unreachable_detail
from tollkeeper.database.schema import check_database, find_outdated
from tollkeeper.database.sessions import shown_hosts
from tollkeeper.entry.backend_probe import probe_backends
from tollkeeper.entry.descriptors import descriptors_of, http_limits
from tollkeeper.entry.operator_listener import OperatorListener, Readiness, show_readiness
from tollkeeper.entry.presence import registered_gateway
from tollkeeper.entry.process_alerts import ProcessAlerts
from tollkeeper.entry.shutdown import longest_shutdown_s
from tollkeeper.entry.stop_signals import take_signals
from tollkeeper.entry.worker_process import WorkerProcess, WorkerStarter
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import address_of
from tollkeeper.setup import build_catalog, build_engine
from tollkeeper.setup.embedded.postgres import EmbeddedPostgres
from tollkeeper.setup.settings import Settings, SettingsError
from tollkeeper.setup.webhook import alert_webhook

_RESTART_PAUSE_S = 1.0
# Then it's killed and replaced.
_START_TIMEOUT_S = 60.0
# After its shutdown steps, before it's killed.
_STOP_SLACK_S = 4.0
# For the embedded database.
_DATABASE_INTERVAL_S = 5.0
_READINESS_INTERVAL_S = 2.0
# Of /readyz.
_DATABASE_TIMEOUT_S = 2.0
_log = structlog.get_logger("tollkeeper.supervisor")


class _NoNewConnection(Unavailable):
    """Open connections may still work."""


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        conninfo: str,
        *,
        public: socket.socket,
        operator: socket.socket,
        reload: Callable[[], Settings],
        worker_starter: WorkerStarter,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._on_stop = on_stop
        self._conninfo = conninfo
        self._public = public
        self._operator = operator
        self._reload = reload
        self._worker_starter = worker_starter
        self._engine = build_engine(settings)
        self._stopping = asyncio.Event()
        self._workers: dict[int, WorkerProcess] = {}
        self._ready_workers: set[int] = set()
        # All workers were, once.
        self._was_ready = False
        # Why this code can no longer use the database.
        self._outdated_reason: str | None = None
        self._alerts = ProcessAlerts(alert_webhook(settings))
        # Refuses former primaries that still accept writes after a failover.
        self._fence = Fence(conninfo, settings.database.seen_file)
        self._database_check: asyncio.Task[SchemaState] | None = None

    async def run(self, *, on_ready: Callable[[], None]) -> None:
        """`on_ready` once all workers serve. Raises StateConflict if a migration made the schema too new for
        this code."""
        loop = asyncio.get_running_loop()
        take_signals(self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_catalog)
        with registered_gateway(self._settings):
            listener = HttpServer(
                OperatorListener(
                    self.readiness,
                    lambda: self._alerts.document,
                    self._worker_starter.metrics_folder,
                ),
                http_limits(),
            )
            await listener.start(self._operator)
            if self._engine is not None:
                await self._engine.start()
            keepers = [
                loop.create_task(self._keep_worker(number, on_ready))
                for number in range(self._settings.server.workers)
            ]
            database_keeper = loop.create_task(self._keep_database())
            readiness_watch = loop.create_task(self._watch_readiness())
            await self._stopping.wait()
            database_keeper.cancel()
            # Workers close their own copies. With this one open, the kernel would accept connections that
            # nobody serves.
            self._public.close()
            await self._stop_workers(keepers)
            readiness_watch.cancel()
            if self._engine is not None:
                await self._engine.close()
            await listener.drain(0)
            await self._alerts.close()
        if self._outdated_reason is not None:
            raise StateConflict(self._outdated_reason)

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._on_stop()
        self._stopping.set()

    async def _keep_database(self) -> None:
        """Nothing to do for an external one."""
        if self._settings.database.url:
            return
        server = EmbeddedPostgres(self._settings.database.data_dir)
        while True:
            await asyncio.sleep(_DATABASE_INTERVAL_S)
            try:
                await asyncio.to_thread(server.ensure_running)
            except (TollkeeperError, OSError) as exc:
                _log.error("the embedded database cannot be started", reason=str(exc))

    async def _watch_readiness(self) -> None:
        """Once all workers have been ready."""
        while True:
            await asyncio.sleep(_READINESS_INTERVAL_S)
            if not self._was_ready:
                continue
            try:
                # Not in `readiness`: /readyz would wait up to a second for a host that doesn't answer.
                with contextlib.suppress(psycopg.Error):
                    await self._fence.survey()
                readiness = await self.readiness()
                show_readiness(readiness)
                if not readiness.is_stopping:
                    self._alerts.check(readiness)
            except Exception:  # noqa: BLE001 - otherwise this background task would end
                _log.exception("the gateway's readiness is not known")

    async def wait_for_engine(self, timeout_s: float) -> str:
        """Returns a sentence about its state."""
        if self._engine is None:
            return "none: no embedded backend is declared"
        if self._engine.address is not None:
            await self._engine.wait_ready(timeout_s)
        return self._engine.status.detail

    async def readiness(self) -> Readiness:
        parts = {"workers": f"{len(self._ready_workers)} of {self._settings.server.workers} answer"}
        ready = bool(self._ready_workers)
        holds, can_hold = self._describe_holds()
        reachable = True
        try:
            state = await self._check_database()
            database_state = f"ok, schema {state.description}" if state.is_newer else "ok"
            parts["database"] = "; ".join((database_state, *self._fence.old_servers))
        except _NoNewConnection as exc:
            # Calls use the workers' open connections. A balancer that took all gateways out would turn a
            # refused new connection into a full outage.
            warning = "warning: no new connection: " if can_hold else ""
            parts["database"] = f"{warning}{exc.message}"
            reachable = False
        except TollkeeperError as exc:
            parts["database"] = exc.message
            # Others, such as an unsuitable schema, come from a database that was reached.
            reachable = not isinstance(exc, Unavailable)
            can_hold = can_hold and reachable
            ready = False
        descriptors, enough = self._describe_descriptors()
        parts |= descriptors
        ready = ready and enough
        parts["holds"] = holds
        ready = ready and can_hold
        backends, any_reachable = await probe_backends(self._settings, self._engine)
        parts |= backends
        ready = ready and any_reachable
        return Readiness(
            parts=parts,
            ready=ready,
            database_reachable=reachable,
            database_writable=can_hold,
            is_stopping=self._stopping.is_set(),
            old_servers=self._fence.old_servers,
        )

    async def _check_database(self) -> SchemaState:
        """Callers share a check, because a server that doesn't answer blocks a thread for seconds."""
        if self._database_check is None or self._database_check.done():
            self._database_check = asyncio.create_task(self._check_newest_server())
            # A caller that has gone doesn't read it.
            self._database_check.add_done_callback(
                lambda check: check.cancelled() or check.exception()
            )
        await asyncio.wait([self._database_check], timeout=_DATABASE_TIMEOUT_S)
        if not self._database_check.done():
            hosts = shown_hosts(self._conninfo)
            raise _NoNewConnection(f"The database at {hosts} does not answer.")
        return self._database_check.result()

    async def _check_newest_server(self) -> SchemaState:
        try:
            address = await self._fence.address()
            return await asyncio.to_thread(check_database, address)
        except ServerFenced as exc:
            raise Unavailable(unreachable_detail(self._conninfo, exc)) from exc
        except psycopg.Error as exc:
            raise _NoNewConnection(unreachable_detail(self._conninfo, exc)) from exc
        except Unavailable as exc:
            self._fence.forget_address()
            raise _NoNewConnection(exc.message) from exc

    def _describe_holds(self) -> tuple[str, bool]:
        """One worker that can't is enough, because a call may reach any."""
        problems = [
            problem
            for number in sorted(self._ready_workers)
            if (problem := self._workers[number].report.problem) is not None
        ]
        return (problems[0], False) if problems else ("can be written", True)

    def _describe_descriptors(self) -> tuple[dict[str, str], bool]:
        """About the worker closest to its limit."""
        of_workers = [
            descriptors
            for number in self._ready_workers
            if (descriptors := descriptors_of(self._workers[number].pid)) is not None
        ]
        if not of_workers:
            return {}, True
        fullest = max(of_workers, key=lambda descriptors: descriptors.open / descriptors.limit)
        detail = f"a worker uses {fullest.open} of {fullest.limit}"
        if fullest.are_nearly_exhausted:
            detail += ": nearly exhausted, raise the limit of open files"
        return {"descriptors": detail}, not fullest.are_nearly_exhausted

    async def _keep_worker(self, number: int, on_ready: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                worker = await self._start_worker()
            except OSError as exc:
                _log.error("a worker cannot be started", worker=number, reason=str(exc))
            else:
                await self._watch_worker(number, worker, on_ready)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _RESTART_PAUSE_S)

    async def _watch_worker(
        self, number: int, worker: WorkerProcess, on_ready: Callable[[], None]
    ) -> None:
        """Then stops everything if the schema has become too new for this code."""
        self._workers[number] = worker
        if self._stopping.is_set():
            # Stopped during this worker's start, so `_stop_workers` has missed it.
            worker.terminate()
        became_ready = await worker.becomes_ready(_START_TIMEOUT_S)
        if became_ready:
            self._ready_workers.add(number)
            if len(self._ready_workers) == self._settings.server.workers and not self._was_ready:
                self._was_ready = True
                on_ready()
        code = await worker.wait()
        self._ready_workers.discard(number)
        if became_ready:
            # Its gauges go, its counters stay.
            mark_process_dead(worker.pid, self._worker_starter.metrics_folder)  # type: ignore[no-untyped-call]
        else:
            self._worker_starter.delete_metrics(worker.pid)
        if self._stopping.is_set():
            return
        self._outdated_reason = await asyncio.to_thread(find_outdated, self._conninfo)
        if self._outdated_reason is not None:
            # The others end for the same reason.
            self._stop()
        else:
            _log.error("a worker ended and is started again", worker=number, code=code)

    async def _start_worker(self) -> WorkerProcess:
        worker = self._worker_starter.take()
        await worker.start(self._public)
        # After the wait: a reload meanwhile doesn't reach this worker.
        address = None if self._engine is None else self._engine.address
        worker.instruct(
            {
                "kind": "start",
                "settings": self._settings.model_dump(mode="json"),
                "conninfo": self._conninfo,
                "engine": None if address is None else dataclasses.asdict(address),
            }
        )
        return worker

    def _reload_catalog(self) -> None:
        try:
            # Only the catalogue. Other settings wait for the next start, because their sockets and processes
            # exist.
            changed = self._settings.model_copy(update={"models": self._reload().models})
            self._check_catalog(changed)
        except SettingsError as exc:
            _log.error("the changed settings are refused, the old ones stay", reason=str(exc))
            return
        self._settings = changed
        document = {"kind": "settings", "settings": changed.model_dump(mode="json")}
        for worker in self._workers.values():
            if worker.is_running:
                worker.instruct(document)

    def _check_catalog(self, changed: Settings) -> None:
        """Raises SettingsError if the workers couldn't use it."""
        running = {backend.name: backend.kind for backend in self._settings.backends}
        engine_tokens = 0 if self._engine is None else self._engine.options.context_length
        for model in changed.models:
            for name in model.backends:
                if name not in running:
                    raise SettingsError(
                        f"the backend {name!r} was not declared when the gateway was started",
                        ("models", model.id, "backend"),
                    )
                if running[name] == "embedded" and model.context_length > engine_tokens > 0:
                    raise SettingsError(
                        f"the engine was started with a context of {engine_tokens} tokens; "
                        "restart the gateway to enlarge it",
                        ("models", model.id, "context_length"),
                    )
        build_catalog(changed)

    async def _stop_workers(self, keepers: list[asyncio.Task[None]]) -> None:
        for worker in self._workers.values():
            if worker.is_running:
                worker.terminate()
        server = self._settings.server
        within_s = server.stop_delay_s + longest_shutdown_s(server.grace_s) + _STOP_SLACK_S
        _, late_keepers = await asyncio.wait(keepers, timeout=within_s)
        for worker in self._workers.values():
            if worker.is_running:
                worker.kill()
        for keeper in late_keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def describe(public: socket.socket, operator: socket.socket) -> dict[str, str]:
    return {"public": f"http://{address_of(public)}", "operator": f"http://{address_of(operator)}"}
