"""Reads a running gateway's vitals: descriptors, tasks, memory, running calls and held money."""

import asyncio
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from bench.gateway import Running
from bench.processes import named, resident_bytes, tree
from tollkeeper.money.credit.store import with_balances

_WORKER = "tollkeeper.entry.worker"
_MONEY = with_balances("SELECT coalesce(sum(held), 0), coalesce(sum(unsettled), 0) FROM balances")
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Vitals:
    descriptors: int
    tasks: int
    resident_mb: float
    running_calls: int
    held_picousd: int
    unsettled_picousd: int


def workers(gateway: Running) -> list[int]:
    return named(tree(gateway.pid), _WORKER)


def metrics(gateway: Running) -> dict[str, float]:
    """Returns the sum of each metric over all its labels."""
    address = f"http://127.0.0.1:{gateway.operator_port}/metrics"
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def read_vitals(gateway: Running) -> Vitals:
    found = metrics(gateway)
    with psycopg.connect(gateway.conninfo, autocommit=True) as connection:
        row = connection.execute(_MONEY).fetchone()
    assert row is not None
    return Vitals(
        descriptors=int(found.get("tollkeeper_open_descriptors", 0)),
        tasks=int(found.get("tollkeeper_tasks", 0)),
        resident_mb=sum(map(resident_bytes, workers(gateway))) / 1e6,
        running_calls=int(found.get("tollkeeper_running_calls", 0)),
        held_picousd=int(row[0]),
        unsettled_picousd=int(row[1]),
    )


async def settles(
    gateway: Running, is_settled: Callable[[Vitals], bool], *, within_s: float
) -> tuple[float | None, Vitals]:
    """Waits until `is_settled`. Returns the seconds, or None if it took too long, and the last vitals."""
    started = time.monotonic()
    while True:
        vitals = await asyncio.to_thread(read_vitals, gateway)
        elapsed = time.monotonic() - started
        if is_settled(vitals):
            return elapsed, vitals
        if elapsed > within_s:
            return None, vitals
        await asyncio.sleep(_POLL_S)


def slope_per_hour(samples: list[tuple[float, float]]) -> float:
    """Returns the growth of the values per hour, by least squares. Samples are seconds and values."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    if not spread:
        return 0.0
    return 3600 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
