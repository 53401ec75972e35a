"""Samples a worker's queues, connections, replicas and event loop for metrics."""

import asyncio
import os
import platform
import resource
from collections import Counter as Tally
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import Counter, Gauge

from tollkeeper import __version__
from tollkeeper.calls.inference import Inference
from tollkeeper.core.port import Backend
from tollkeeper.core.runtime.output import log_output
from tollkeeper.core.runtime.tallies import HistogramTally, schedule_write
from tollkeeper.database.database import Database
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.policies import metrics as policy_metrics
from tollkeeper.policies.checks import PolicyChecks
from tollkeeper.reports import call_metrics
from tollkeeper.reports.activity.service import Activity

# Linux only.
_PROC_SELF = Path("/proc/self")
_REPLICA_STATES = ("healthy", "failing", "ejected", "probing")
# A task sleeps this long; whatever it takes beyond is the event loop's delay.
_LAG_PROBE_S = 0.05

_QUEUE = Gauge(
    "tollkeeper_queue_length",
    "Items that wait to be written, by queue.",
    ["queue"],
    multiprocess_mode="livesum",
)
_CALLS = Gauge("tollkeeper_running_calls", "Calls in progress.", multiprocess_mode="livesum")
_JUDGE_SLOTS = Gauge(
    "tollkeeper_judge_slots_in_use",
    "Questions that the judge is answering.",
    multiprocess_mode="livesum",
)
_JUDGE_QUEUE = Gauge(
    "tollkeeper_judge_queue_length",
    "Questions that wait for the judge, by origin: calls that wait for the answer, or monitoring.",
    ["asker"],
    multiprocess_mode="livesum",
)
_POOL = Gauge(
    "tollkeeper_database_connections",
    "Connections to the database by state.",
    ["state"],
    multiprocess_mode="livesum",
)
_POOL_WAITING = Gauge(
    "tollkeeper_database_waiting",
    "Requests that wait for a connection to the database.",
    multiprocess_mode="livesum",
)
# With the maximum of all workers, 0 healthy replicas means that none sees a healthy one.
_REPLICAS = Gauge(
    "tollkeeper_replicas",
    "Replicas of a backend by state.",
    ["backend", "state"],
    multiprocess_mode="livemax",
)
_TASKS = Gauge("tollkeeper_tasks", "Tasks of the event loops.", multiprocess_mode="livesum")
_DESCRIPTORS = Gauge(
    "tollkeeper_open_descriptors",
    "Open files and sockets of the workers.",
    multiprocess_mode="livesum",
)
_RESIDENT = Gauge(
    "tollkeeper_resident_bytes", "Resident memory of the workers.", multiprocess_mode="livesum"
)
_LAG = HistogramTally(
    "tollkeeper_event_loop_lag_seconds",
    "Delay of a worker's event loop in seconds, sampled.",
    [],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
_DROPPED_LINES = Counter(
    "tollkeeper_dropped_log_lines",
    "Log lines of the workers that were dropped, because nobody read the log.",
)
_BUILD = Gauge(
    "tollkeeper_build_info",
    "1, with the versions of tollkeeper and Python.",
    ["version", "python"],
    multiprocess_mode="max",
)


class ProcessWatch:
    def __init__(
        self,
        database: Database,
        backends: Mapping[str, Backend],
        ledger: Ledger,
        activity: Activity,
        inference: Inference,
        checks: PolicyChecks,
    ) -> None:
        self._database = database
        self._backends = backends
        self._ledger = ledger
        self._activity = activity
        self._inference = inference
        self._checks = checks
        self._dropped_lines = log_output.dropped
        _BUILD.labels(__version__, platform.python_version()).set(1)
        call_metrics.begin_counting(backends)
        policy_metrics.begin_counting()

    async def sample(self) -> None:
        for queue, length in self._ledger.queued.items():
            _QUEUE.labels(queue).set(length)
        _QUEUE.labels("activity").set(self._activity.queued)
        _CALLS.set(self._inference.running)
        self._sample_judge()
        self._sample_connections()
        before, self._dropped_lines = self._dropped_lines, log_output.dropped
        _DROPPED_LINES.inc(self._dropped_lines - before)
        _sample_process()
        for name, backend in self._backends.items():
            count_by_state = Tally(backend.health().replicas.values())
            for state in _REPLICA_STATES:
                _REPLICAS.labels(name, state).set(count_by_state[state])
        await _sample_lag()

    def _sample_judge(self) -> None:
        load = self._checks.judge_load
        if load is not None:
            _JUDGE_SLOTS.set(load.slots_in_use)
            _JUDGE_QUEUE.labels("calls").set(load.calls_waiting)
            _JUDGE_QUEUE.labels("monitoring").set(load.monitoring_waiting)

    def _sample_connections(self) -> None:
        statistics = self._database.statistics()
        size, idle = statistics.get("pool_size", 0), statistics.get("pool_available", 0)
        _POOL.labels("idle").set(idle)
        _POOL.labels("in_use").set(size - idle)
        _POOL_WAITING.set(statistics.get("requests_waiting", 0))


def _sample_process() -> None:
    _TASKS.set(len(asyncio.all_tasks()))
    if _PROC_SELF.exists():  # Without /proc, both numbers stay at 0.
        _DESCRIPTORS.set(len(os.listdir(_PROC_SELF / "fd")))  # noqa: PTH208 - no Path objects are needed
        _RESIDENT.set(int((_PROC_SELF / "statm").read_text().split()[1]) * resource.getpagesize())


async def _sample_lag() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.sleep(_LAG_PROBE_S)
    _LAG.observe((), max(0.0, loop.time() - started - _LAG_PROBE_S))
    schedule_write()
