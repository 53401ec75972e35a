"""`make soak`: runs clients, faults, kills and restarts for half an hour, and checks the gateway afterwards.

There are two workers. One of them is killed every few minutes, and the database is restarted at times. The
other worker is never killed, so that its memory can be measured.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import psycopg
import uvloop

from bench.gateway import Running, tollkeeper
from bench.machine import describe_machine, exit_on_signal
from bench.processes import open_descriptors, resident_bytes
from bench.stress.soak_callers import Callers
from bench.stress.vitals import Vitals, read_vitals, settles, slope_per_hour, workers
from bench.table import Row, as_markdown
from bench.upstream import serving_upstream

_RESULT = Path(__file__).parent.parent / "soak.json"
_ORGANIZATIONS = 20
_CALLERS = 24
_SAMPLE_S = 10.0
_SETTLED_WITHIN_S = 60.0
_SLOPE_MB_PER_HOUR_MAX = 12.0
_DESCRIPTORS_SLACK = 8
# The number of samples at the beginning that are compared with as many samples at the end.
_COMPARED = 12
SETTINGS = {"TOLLKEEPER_LIMITS__INFERENCE_DEADLINE_S": "10"}


@dataclass
class Sample:
    at_s: float
    resident_mb: float
    descriptors: int
    tasks: int
    held_picousd: int
    unsettled_picousd: int


@dataclass
class Soak:
    gateway: Running
    seconds: float
    # The worker that is never killed.
    kept: int
    samples: list[Sample] = field(default_factory=list)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    kills: int = 0
    restarts: int = 0
    at_rest: Vitals | None = None
    verified: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=180, help="seconds")
    parser.add_argument("--restart-every", type=float, default=420, help="seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, exit_on_signal)
    machine = describe_machine()
    with (
        tempfile.TemporaryDirectory(prefix="tks-") as made,
        serving_upstream("bench.stress.faulty_upstream") as upstream,
    ):
        folder = Path(made)
        # If this runs as root, the account that runs PostgreSQL must be able to enter the folder.
        folder.chmod(0o711)
        with tollkeeper(
            folder, upstream, tenants=_ORGANIZATIONS, workers=2, settings=SETTINGS
        ) as gateway:
            soak = Soak(gateway, 60 * options.minutes, kept=min(workers(gateway)))
            uvloop.run(_run(soak, options.seed, options.kill_every, options.restart_every))
            soak.verified = _verify(gateway)
    table = rows(soak)
    print(f"{machine}, load after it {os.getloadavg()[0]:.1f}\n\n{as_markdown(table)}")
    _RESULT.write_text(json.dumps(_document(soak, machine, table), indent=2) + "\n")
    sys.exit(any(row.met == "no" for row in table))


async def _run(soak: Soak, seed: int, kill_every_s: float, restart_every_s: float) -> None:
    callers = Callers(soak.gateway.port, soak.gateway.tenants, seed)
    soak.statuses = callers.statuses
    calling = asyncio.create_task(callers.run(_CALLERS))
    started = time.monotonic()
    kill_at, restart_at, sample_at = kill_every_s, restart_every_s, _SAMPLE_S
    while (elapsed := time.monotonic() - started) < soak.seconds:
        if elapsed >= kill_at:
            kill_at += kill_every_s
            _kill_worker(soak)
        if elapsed >= restart_at:
            restart_at += restart_every_s
            await asyncio.to_thread(_restart_database, soak)
        if elapsed >= sample_at:
            sample_at += _SAMPLE_S
            await _sample(soak, elapsed)
        if calling.done():
            calling.result()
        await asyncio.sleep(0.5)
    callers.stopping.set()
    await calling
    _, soak.at_rest = await settles(
        soak.gateway,
        lambda vitals: vitals.held_picousd == 0 and vitals.running_calls == 0,
        within_s=_SETTLED_WITHIN_S,
    )


async def _sample(soak: Soak, elapsed: float) -> None:
    try:
        vitals = await asyncio.to_thread(read_vitals, soak.gateway)
    except (psycopg.Error, OSError):
        return  # The database or the operator listener is not available at the moment.
    resident_mb = resident_bytes(soak.kept) / 1e6
    descriptors = open_descriptors(soak.kept)
    sample = Sample(
        elapsed,
        resident_mb,
        descriptors,
        vitals.tasks,
        vitals.held_picousd,
        vitals.unsettled_picousd,
    )
    soak.samples.append(sample)
    print(
        f"... {elapsed / 60:5.1f} min: {resident_mb:.1f} MB, {descriptors} descriptors, "
        f"{vitals.tasks} tasks, {sum(soak.statuses.values())} requests",
        file=sys.stderr,
        flush=True,
    )


def _kill_worker(soak: Soak) -> None:
    others = [pid for pid in workers(soak.gateway) if pid != soak.kept]
    if others:
        os.kill(others[0], signal.SIGKILL)
        soak.kills += 1


def _restart_database(soak: Soak) -> None:
    """Stops the server as an operator's restart does, and starts it again."""
    lock = soak.gateway.config.parent / "postgres" / "postmaster.pid"
    postmaster = int(lock.read_text().splitlines()[0])
    os.kill(postmaster, signal.SIGINT)
    for _ in range(600):
        if not Path(f"/proc/{postmaster}").exists():
            break
        time.sleep(0.1)
    soak.gateway.database.ensure_running()
    soak.restarts += 1


def _verify(gateway: Running) -> bool:
    command = [sys.executable, "-m", "tollkeeper", "ledger", "verify"]
    done = subprocess.run([*command, "--config", str(gateway.config)], check=False, timeout=600)
    return done.returncode == 0


def rows(soak: Soak) -> list[Row]:
    second_half = [s for s in soak.samples if s.at_s >= soak.seconds / 2]
    slope = slope_per_hour([(s.at_s, s.resident_mb) for s in second_half]) if second_half else 0.0
    first, last = soak.samples[0], soak.samples[-1]
    descriptors = [sample.descriptors for sample in soak.samples]
    more = median(descriptors[-_COMPARED:]) - median(descriptors[:_COMPARED])
    assert soak.at_rest is not None
    by_status: Counter[int] = Counter()
    for (_, status), count in soak.statuses.items():
        by_status[status] += count
    answered = ", ".join(
        f"{status or 'broken off'}: {count}" for status, count in sorted(by_status.items())
    )
    unanswered = sum(
        count
        for (kind, status), count in soak.statuses.items()
        if kind in ("whole", "stream", "long stream") and status != 200
    )
    return [
        Row("requests, by status", f"{sum(by_status.values())} ({answered})", "", ""),
        Row("without a provoked fault, and not answered with 200", str(unanswered), "", ""),
        Row("workers killed", str(soak.kills), "", ""),
        Row("restarts of the database", str(soak.restarts), "", ""),
        Row("resident memory of the worker that lived all the time",
            f"{first.resident_mb:.0f} MB to {last.resident_mb:.0f} MB", "", ""),
        _row("slope of that memory in the second half", slope, _SLOPE_MB_PER_HOUR_MAX, "MB per hour"),
        _row("more descriptors of it at the end than at the beginning",
             more, _DESCRIPTORS_SLACK, ""),
        _row("held when all callers had left", soak.at_rest.held_picousd, 0, "picousd"),
        Row("unsettled at the end, for calls with an unknown cost",
            f"{soak.at_rest.unsettled_picousd} picousd", "", ""),
        Row("ledger verify", "everything is right" if soak.verified else "it found differences",
            "no difference", "yes" if soak.verified else "no"),
    ]  # fmt: skip


def _row(figure: str, value: float, limit: float, unit: str) -> Row:
    shown = f"{value:.1f}".removesuffix(".0")
    return Row(
        figure, f"{shown} {unit}".rstrip(), f"at most {limit:g} {unit}".rstrip(),
        "yes" if value <= limit else "no",
    )  # fmt: skip


def _document(soak: Soak, machine: str, table: list[Row]) -> dict[str, object]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "minutes": soak.seconds / 60,
        "samples": [asdict(sample) for sample in soak.samples],
        "statuses": {f"{kind}: {status}": n for (kind, status), n in sorted(soak.statuses.items())},
        "table": [asdict(row) for row in table],
    }


if __name__ == "__main__":
    main()
