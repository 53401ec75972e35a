"""Tests that metrics which are counted in memory get the same values as with immediate updates."""

import asyncio
import gc
import time
from uuid import uuid4

from prometheus_client import REGISTRY, Histogram

from tollkeeper.core.runtime import tallies
from tollkeeper.core.runtime.tallies import CounterTally, HistogramTally, OpenTally, write_tallies

_BOUNDS = (0.1, 1, 10)


def _name() -> str:
    return f"test_{uuid4().hex}"


def test_a_counter_has_the_sum() -> None:
    name = _name()
    counter = CounterTally(name, "x", ["kind"])
    for amount in (1, 2, 3.5):
        counter.add(("a",), amount)
    counter.add(("b",))
    assert REGISTRY.get_sample_value(f"{name}_total", {"kind": "a"}) is None
    write_tallies()
    write_tallies()
    assert REGISTRY.get_sample_value(f"{name}_total", {"kind": "a"}) == 6.5
    assert REGISTRY.get_sample_value(f"{name}_total", {"kind": "b"}) == 1


def test_a_histogram_is_the_same_as_the_librarys_own() -> None:
    ours, theirs = _name(), _name()
    tallied = HistogramTally(ours, "x", ["kind"], buckets=_BOUNDS)
    own = Histogram(theirs, "x", ["kind"], buckets=_BOUNDS)
    for value in (0, 0.05, 0.1, 0.5, 1, 2, 10, 11, 1000):
        tallied.observe(("a",), value)
        own.labels("a").observe(value)
    write_tallies()

    def samples(name: str) -> dict[tuple[str, str], float]:
        (found,) = (metric for metric in REGISTRY.collect() if metric.name == name)
        return {
            (sample.name.removeprefix(name), sample.labels.get("le", "")): sample.value
            for sample in found.samples
            if not sample.name.endswith("_created")
        }

    assert samples(ours) == samples(theirs)
    assert samples(ours)["_count", ""] == 9


def test_no_more_than_some_thousand_values_are_kept() -> None:
    name = _name()
    tally = HistogramTally(name, "x", (), buckets=_BOUNDS)
    for _ in range(10_000):
        tally.observe((), 1)
    written = REGISTRY.get_sample_value(f"{name}_count")
    assert written is not None
    assert 5_000 < written < 10_000
    write_tallies()
    assert REGISTRY.get_sample_value(f"{name}_count") == 10_000


def test_what_is_open_is_shown() -> None:
    name = _name()
    tally = OpenTally(name, "x")
    tally.open += 2
    write_tallies()
    assert REGISTRY.get_sample_value(name) == 2


async def test_what_was_counted_is_written_within_the_interval() -> None:
    name = _name()
    counter = CounterTally(name, "x", ["kind"])
    counter.add(("a",))
    tallies.schedule_write()
    deadline = time.monotonic() + 20
    while REGISTRY.get_sample_value(f"{name}_total", {"kind": "a"}) != 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_a_writer_goes_with_its_object() -> None:
    class Kept:
        written = 0

        def write(self) -> None:
            Kept.written += 1

    # Remove the writers of objects that earlier tests have left.
    gc.collect()
    write_tallies()
    kept = Kept()
    before = len(tallies._writers)
    tallies.write_while_alive(kept.write)
    write_tallies()
    assert Kept.written == 1
    del kept
    write_tallies()
    assert (Kept.written, len(tallies._writers)) == (1, before)
