"""Tests which settings the supervisor gives to a worker that it starts."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.scripted_gateway import scripted_settings
from tollkeeper.hosting.supervisor import Supervisor
from tollkeeper.hosting.worker_process import WorkerProcess, WorkerStarter


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
