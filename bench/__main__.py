"""`make bench`: prints the table and writes bench/result.json. Ratios of one run are what counts."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import figures, reports
from bench.admin import admin_report
from bench.figures import Target
from bench.gateway import MODEL, Running, tollkeeper
from bench.peers import sglang_gateway
from bench.processes import cpu_s, tree
from bench.upstream import PIECES

_RESULT = Path(__file__).parent / "result.json"
_ORGANIZATIONS = 100


@contextmanager
def _upstream() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.upstream"], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--settled", type=int, default=1_000_000)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    found: dict[str, object] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        upstream = stack.enter_context(_upstream())
        gateway = stack.enter_context(tollkeeper(folder, upstream, tenants=_ORGANIZATIONS + 1))
        direct = Target("upstream alone", upstream, 0, "/v1/chat/completions", "bench", [{}])
        ours = Target(
            "tollkeeper",
            gateway.port,
            gateway.pid,
            "/v1/chat/completions",
            MODEL,
            [_as(gateway, 0)],
        )
        targets = [ours]
        if not options.no_peers:
            targets += stack.enter_context(sglang_gateway(upstream, found))
        found["start_s"] = round(gateway.start_s, 2)
        found["idle_resident_mb"] = round(figures.worker_resident_mb(gateway.pid), 1)
        _requests(targets, gateway, options.rounds, options.requests, found)
        _streams(targets, options.rounds, found)
        _latency(direct, ours, options.rounds, found)
        found["stream_resident_kib"] = round(figures.stream_resident_kib(ours, 200), 1)
        _hot(ours, gateway, options.rounds, options.requests, found)
        _reports(gateway, options.settled, found)
    _RESULT.write_text(json.dumps(found, indent=2) + "\n")
    for name, value in found.items():
        print(f"{name:40} {value}")


def _as(gateway: Running, tenant: int) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.tenants[tenant].key}"}


def _requests(
    targets: list[Target], gateway: Running, rounds: int, count: int, found: dict[str, object]
) -> None:
    """CPU per non-streamed request at 32 connections, medians of interleaved rounds."""
    cpu: dict[str, list[float]] = {target.name: [] for target in targets}
    rate: dict[str, list[float]] = {target.name: [] for target in targets}
    database: list[float] = []
    for target in targets:
        figures.measure(target, stream=False, connections=32, count=count // 4)  # warm
    for _ in range(rounds):
        for target in targets:
            before = cpu_s(tree(gateway.database_pid))
            result, spent = figures.measure(target, stream=False, connections=32, count=count)
            cpu[target.name].append(1e6 * spent / result.requests)
            rate[target.name].append(result.per_second)
            if target.name == "tollkeeper":
                database.append(
                    1e6 * (cpu_s(tree(gateway.database_pid)) - before) / result.requests
                )
    for target in targets:
        found[f"{target.name}: cpu_us_per_request"] = round(figures.median(cpu[target.name]))
        found[f"{target.name}: requests_per_s"] = round(figures.median(rate[target.name]))
    found["tollkeeper: database_cpu_us_per_request"] = round(figures.median(database))


def _streams(targets: list[Target], rounds: int, found: dict[str, object]) -> None:
    """CPU per piece of streams that are paced by the upstream, sixteen at once."""
    cpu: dict[str, list[float]] = {target.name: [] for target in targets}
    for _ in range(rounds):
        for target in targets:
            result, spent = figures.measure(target, stream=True, connections=16, count=64)
            cpu[target.name].append(1e6 * spent / result.requests / PIECES)
    for target in targets:
        found[f"{target.name}: cpu_us_per_piece"] = round(figures.median(cpu[target.name]), 1)


def _latency(direct: Target, ours: Target, rounds: int, found: dict[str, object]) -> None:
    """What a lone caller waits longer for its first byte than without the gateway."""
    alone: list[float] = []
    through: list[float] = []
    for _ in range(rounds):
        alone += figures.latency_ms(direct, 300)
        through += figures.latency_ms(ours, 300)
    alone.sort()
    through.sort()
    for share in (0.5, 0.99):
        added = figures.quantile(through, share) - figures.quantile(alone, share)
        found[f"added_first_byte_ms_p{round(share * 100)}"] = round(added, 2)


def _hot(ours: Target, gateway: Running, rounds: int, count: int, found: dict[str, object]) -> None:
    """Throughput with nine of ten calls on one account, against the same over a hundred."""
    spread = [_as(gateway, 1 + number % _ORGANIZATIONS) for number in range(1000)]
    hot = [header if number % 10 == 0 else _as(gateway, 0) for number, header in enumerate(spread)]
    rates: dict[str, list[float]] = {"hot": [], "spread": []}
    for _ in range(rounds):
        for name, headers in (("hot", hot), ("spread", spread)):
            target = Target(name, ours.port, ours.pid, ours.path, ours.model, headers)
            result, _ = figures.measure(target, stream=False, connections=32, count=count)
            rates[name].append(result.per_second)
    found["hot_organization_share"] = round(
        figures.median(rates["hot"]) / figures.median(rates["spread"]), 2
    )


def _reports(gateway: Running, settled: int, found: dict[str, object]) -> None:
    small, large = gateway.tenants[1], gateway.tenants[2]
    reports.fill(gateway.conninfo, small.organization_id, 1000)
    reports.fill(gateway.conninfo, large.organization_id, settled)
    ask_small = admin_report(gateway, small)
    ask_large = admin_report(gateway, large)
    found["report_ms_at_1e3"] = round(reports.report_ms(ask_small), 2)
    found[f"report_ms_at_{settled}"] = round(reports.report_ms(ask_large), 2)


if __name__ == "__main__":
    main()
