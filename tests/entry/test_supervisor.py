"""Tests the supervisor: the settings of a worker that it starts, and its check of the database."""

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.scripted_gateway import scripted_settings
from tollkeeper.core.errors import Unavailable
from tollkeeper.entry import supervisor as supervisor_module
from tollkeeper.entry.supervisor import Supervisor
from tollkeeper.entry.worker_process import WorkerProcess, WorkerStarter


class _Worker(WorkerProcess):
    """Has no process. Calls a function while it starts, and records its instructions."""

    def __init__(self) -> None:
        self.during_start: Callable[[], None] = lambda: None
        self.instructions: list[dict[str, Any]] = []

    async def start(self, listener: socket.socket) -> None:
        assert listener.fileno() != -1
        self.during_start()

    def instruct(self, instruction: dict[str, Any]) -> None:
        self.instructions.append(instruction)


class _Starter(WorkerStarter):
    def __init__(self, worker: WorkerProcess) -> None:
        self.metrics_folder = ""
        self._loading = worker


async def test_a_reload_reaches_a_worker_that_is_starting(tmp_path: Path) -> None:
    settings = scripted_settings(tmp_path, "http://127.0.0.1:9/v1")
    changed = settings.model_copy(update={"models": ()})
    worker = _Worker()
    with socket.socket() as public, socket.socket() as operator:
        supervisor = Supervisor(
            settings,
            "",
            public=public,
            operator=operator,
            reload=lambda: changed,
            worker_starter=_Starter(worker),
        )
        worker.during_start = supervisor._reload_catalog
        assert await supervisor._start_worker() is worker
    assert [one["settings"]["models"] for one in worker.instructions] == [[]]


async def test_an_error_that_comes_too_late_for_its_caller_is_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop would log an exception of a task that no caller has read."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    monkeypatch.setattr(supervisor_module, "_DATABASE_TIMEOUT_S", 0.01)
    settings = scripted_settings(tmp_path, "http://127.0.0.1:9/v1")
    with socket.socket() as public, socket.socket() as operator:
        supervisor = Supervisor(
            settings,
            "host=127.0.0.1",
            public=public,
            operator=operator,
            reload=lambda: settings,
            worker_starter=_Starter(_Worker()),
        )

        async def fail_late() -> str:
            await asyncio.sleep(0.05)
            raise psycopg.OperationalError("the server does not answer")

        monkeypatch.setattr(supervisor._fence, "address", fail_late)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await supervisor._check_database()
            await asyncio.sleep(0.1)
        del supervisor
        gc.collect()
    assert reported == []
