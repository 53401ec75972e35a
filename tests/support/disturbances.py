"""Adds to the report of a failed test what may have disturbed the test: pauses of the test process, and the
last lines of the log of the shared database server."""

import threading
import time
from collections import deque
from collections.abc import Generator
from datetime import UTC, datetime

import pytest

from tests.support.data_folders import cluster_of

_INTERVAL_S = 0.5
# A busy machine delays a thread for a shorter time than this.
_PAUSE_S_MIN = 2.0
_PAUSES_MAX = 10
_LINES_MAX = 15


class PauseWatch(threading.Thread):
    """Measures how late a thread wakes up. It is late if the machine was suspended, or if another thread
    has kept the interpreter lock."""

    def __init__(self) -> None:
        super().__init__(name="pause watch", daemon=True)
        self.pauses: deque[str] = deque(maxlen=_PAUSES_MAX)

    def run(self) -> None:
        never = threading.Event()  # `time.sleep` may be replaced by a test
        while True:
            before = time.monotonic()
            never.wait(_INTERVAL_S)
            late_s = time.monotonic() - before - _INTERVAL_S
            if late_s > _PAUSE_S_MIN:
                self.pauses.append(f"{datetime.now(UTC)}: paused for {late_s:.1f} s")


_watch = PauseWatch()


def pytest_sessionstart() -> None:
    _watch.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        if _watch.pauses:
            report.sections.append(("Pauses of the process", "\n".join(_watch.pauses)))
        data_dir = getattr(item, "funcargs", {}).get("data_dir")
        if data_dir is not None and (log := cluster_of(data_dir) / "server.log").exists():
            lines = log.read_text(errors="replace").splitlines()[-_LINES_MAX:]
            report.sections.append(("Log of the database server", "\n".join(lines)))
    return report
