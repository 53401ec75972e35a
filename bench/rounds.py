"""Measures the figures in several rounds. In a round, targets are loaded one at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench import reports
from bench.admin import admin_report
from bench.figures import LoadFailed, Target, first_byte_ms, measure, median, quantile
from bench.gateway import Running, wal_bytes
from bench.peers import awake
from bench.processes import cpu_s, resident_mb, tree
from bench.table import OURS, TWO_WORKERS
from bench.upstream import BRIEF, PACED, PIECES

_REQUEST_CONNECTIONS = 32
_STREAM_CONNECTIONS = 16
_STREAMS = 64
_FIRST_BYTES = 300


@dataclass
class Run:
    """A run with the figures that are measured so far."""

    gateway: Running
    targets: list[Target]
    rounds: int
    count: int
    # The reason for each target that is not measured.
    missing: dict[str, str]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def ours(self) -> Target:
        return self.targets[0]


def requests(run: Run) -> None:
    """Measures the CPU and other figures per request that is not streamed."""

    def load(target: Target, part: float = 1.0) -> dict[str, float]:
        count = max(2 * _REQUEST_CONNECTIONS, round(run.count * target.share * part))
        database = tree(run.gateway.database_pid)
        before, wal_before = cpu_s(database), wal_bytes(run.gateway.conninfo)
        result, spent = measure(
            target, PACED, stream=False, connections=_REQUEST_CONNECTIONS, count=count
        )
        figures = {
            f"{target.name}.cpu_us_per_request": 1e6 * spent.cpu_s / result.requests,
            f"{target.name}.requests_per_s": result.per_second,
            f"{target.name}.switches_per_request": spent.switches / result.requests,
            f"{target.name}.loaded_resident_mb": resident_mb(target.pid),
        }
        if target.name == OURS:
            database_spent = cpu_s(database) - before
            written = wal_bytes(run.gateway.conninfo) - wal_before
            figures |= {
                "database_cpu_us_per_request": 1e6 * database_spent / result.requests,
                "database_share": database_spent / spent.cpu_s,
                "wal_bytes_per_request": written / result.requests,
            }
        return figures

    _in_turns(run, lambda target: load(target, 0.25), 1)  # a warm-up
    run.figures |= _in_turns(run, load, run.rounds)
    ours, two = (f"{name}.cpu_us_per_request" for name in (OURS, TWO_WORKERS))
    run.figures["two_workers_share"] = run.figures[two] / run.figures[ours]


def streams(run: Run) -> None:
    """Measures the CPU per piece of a stream. The upstream sends the pieces at fixed intervals."""

    def load(target: Target) -> dict[str, float]:
        count = max(_STREAM_CONNECTIONS, round(_STREAMS * target.share))
        result, spent = measure(
            target, PACED, stream=True, connections=_STREAM_CONNECTIONS, count=count
        )
        return {f"{target.name}.cpu_us_per_piece": 1e6 * spent.cpu_s / result.requests / PIECES}

    run.figures |= _in_turns(run, load, run.rounds)


def _in_turns(
    run: Run, load: Callable[[Target], dict[str, float]], rounds: int
) -> dict[str, float]:
    """Returns medians over the rounds. A target that fails once has no figures and is not loaded again."""
    collected: dict[str, list[float]] = {}
    failed: set[str] = set()
    for _ in range(rounds):
        for target in list(run.targets):
            try:
                with awake(target):
                    figures = load(target)
            except (LoadFailed, OSError) as exc:
                if target is run.ours:
                    raise
                run.targets.remove(target)
                run.missing[target.name] = f"failed under load: {str(exc) or type(exc).__name__}"
                failed.add(target.name)
                continue
            for name, value in figures.items():
                collected.setdefault(name, []).append(value)
    return {
        name: median(values)
        for name, values in collected.items()
        if name.partition(".")[0] not in failed
    }


def first_bytes(run: Run, direct: Target) -> None:
    """Measures the time that the gateway adds to a single client's wait for the first byte."""
    for kind, stream, model in (("stream", True, BRIEF), ("json", False, PACED)):
        alone: list[float] = []
        through: list[float] = []
        for _ in range(run.rounds):
            alone += first_byte_ms(direct, model, stream=stream, count=_FIRST_BYTES)
            through += first_byte_ms(run.ours, model, stream=stream, count=_FIRST_BYTES)
        for percent in (50, 99):
            added = quantile(through, percent / 100) - quantile(alone, percent / 100)
            run.figures[f"{kind}_first_byte_added_ms_p{percent}"] = added


def hot_organization(run: Run, tenants: list[dict[str, str]]) -> None:
    """Measures the throughput if one account gets nine of ten calls, relative to calls on many accounts."""
    first, *others = tenants
    spread = [others[number % len(others)] for number in range(1000)]
    hot = [header if number % 10 == 0 else first for number, header in enumerate(spread)]
    ours = run.ours
    rates: dict[str, list[float]] = {"hot": [], "spread": []}
    for _ in range(run.rounds):
        for name, headers in (("hot", hot), ("spread", spread)):
            target = Target(name, ours.port, ours.pid, ours.models, headers)
            result, _ = measure(
                target, PACED, stream=False, connections=_REQUEST_CONNECTIONS, count=run.count
            )
            rates[name].append(result.per_second)
    run.figures["hot_organization_share"] = median(rates["hot"]) / median(rates["spread"])


def report_costs(run: Run, settled: int) -> None:
    """Times the same report for an organization with 1,000 settled requests and for one with many."""
    small, large = run.gateway.tenants[1], run.gateway.tenants[2]
    reports.fill(run.gateway.conninfo, small.organization_id, 1000)
    reports.fill(run.gateway.conninfo, large.organization_id, settled)
    asks = [admin_report(run.gateway, small), admin_report(run.gateway, large)]
    after_few, after_many = reports.report_ms(asks)
    run.figures |= {
        "report_settled": settled,
        "report_ms_after_1000": after_few,
        "report_ms_after_settled": after_many,
        "report_ratio": after_many / after_few,
    }
