"""`python -m bench.capacity`: computes the machines and storage that a rate of calls needs.

The CPU and log per call, and the memory of a worker, are figures of `make growth` (at its largest number
of organizations) or of `make bench`. `--measure` measures the storage per call for each table.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.gateway import tollkeeper
from bench.growth import Load
from bench.growth_books import Books, fill
from bench.upstream import serving_upstream

_HERE = Path(__file__).parent
_STORAGE = _HERE / "storage.json"
_DAY_S = 86_400
_ROUND = 2_000
# The tables that calls write to, and the number of days for which their rows are kept by default.
_KEPT_DAYS = {
    "reservations": 62,
    "resolutions": 62,
    "activity": 30,
    "traffic": 30,
    "cost_rollup": 365,
}


# The highest number of roll-up rows per day and organization, which does not grow with its calls:
# 288 steps of five minutes and two line items, for one key and one model.
_ROLL_UP_ROWS = {"traffic": 288, "cost_rollup": 2}


@dataclass(frozen=True, slots=True)
class PerCall:
    """The resources that one call uses. `resident_mb` is the memory of a worker."""

    gateway_us: float
    database_us: float
    wal_bytes: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Grown:
    """The growth of a table for one call: rows, and bytes of the table and of its indexes."""

    table: str
    rows: float
    heap: float
    indexes: float


@dataclass(frozen=True, slots=True)
class Wanted:
    rate: float
    organizations: int
    cores: int
    # The share of a machine's cores that may be busy on average.
    utilisation: float


def main() -> None:
    options = _options()
    if options.measure:
        grown = measure_storage(options.measure, options.organizations)
        text = {"calls": options.measure, "tables": [asdict(one) for one in grown]}
        _STORAGE.write_text(json.dumps(text, indent=2) + "\n")
    for needed, command in ((options.figures, "make growth"), (_STORAGE, "--measure 100000")):
        if not needed.exists():
            raise SystemExit(f"{needed} is not there yet: run `{command}` first.")
    stored = json.loads(_STORAGE.read_text())
    grown = [Grown(**one) for one in stored["tables"]]
    wanted = Wanted(options.rate, options.callers, options.cores, options.utilisation)
    print(report(read_figures(options.figures), grown, wanted))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity")
    parser.add_argument("--figures", type=Path, default=_HERE / "growth.json")
    parser.add_argument("--measure", type=int, default=0, metavar="CALLS")
    parser.add_argument("--organizations", type=int, default=10_000, help="in the measurement")
    parser.add_argument("--callers", type=int, default=1_000_000, help="organizations that call")
    parser.add_argument("--rate", type=float, default=100_000, help="calls a second")
    parser.add_argument("--cores", type=int, default=16, help="of each machine")
    parser.add_argument("--utilisation", type=float, default=0.6)
    return parser.parse_args()


def read_figures(path: Path) -> PerCall:
    """Reads the figures of `make growth` or of `make bench`."""
    found = json.loads(path.read_text())
    if "curves" in found:
        point = found["curves"]["organizations"][-1]
        return PerCall(
            point["gateway_us"], point["database_us"], point["wal_bytes"], point["resident_mb"]
        )
    figures: Mapping[str, float] = found["figures"]
    return PerCall(
        figures["tollkeeper.cpu_us_per_request"],
        figures["database_cpu_us_per_request"],
        figures["wal_bytes_per_request"],
        figures["tollkeeper.loaded_resident_mb"],
    )


def measure_storage(calls: int, organizations: int) -> list[Grown]:
    """Makes calls from this number of organizations, and returns the growth of each table per call."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        folder.chmod(0o711)
        upstream = stack.enter_context(serving_upstream())
        books = Books(organizations=organizations, keys=organizations)
        gateway = stack.enter_context(
            tollkeeper(folder, upstream, tenants=0, fill=lambda conninfo: fill(conninfo, books))
        )
        load = Load(gateway, organizations)
        before = _sizes(gateway.conninfo)
        for _ in range(calls // _ROUND):
            load.run(_ROUND)
        after = _sizes(gateway.conninfo)
    made = calls // _ROUND * _ROUND
    empty = (0, 0, 0)
    return [
        Grown(
            table,
            *((new - old) / made for new, old in zip(size, before.get(table, empty), strict=True)),
        )
        for table, size in sorted(after.items())
        if table in _KEPT_DAYS
    ]


def _sizes(conninfo: str) -> dict[str, tuple[int, int, int]]:
    """Returns each table's rows, bytes and index bytes. Partitions count for their table."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        found = connection.execute(
            """
            SELECT regexp_replace(c.relname, '_([0-9]{6,8}|default)$', ''),
                sum(greatest(c.reltuples, 0))::bigint, sum(pg_table_size(c.oid))::bigint,
                sum(pg_indexes_size(c.oid))::bigint
            FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
            GROUP BY 1
            """
        ).fetchall()
    return {row[0]: (row[1], row[2], row[3]) for row in found}


def report(per_call: PerCall, grown: list[Grown], wanted: Wanted) -> str:
    gateways = _machines(per_call.gateway_us, wanted)
    workers = gateways * wanted.cores
    shards = _machines(per_call.database_us, wanted)
    calls_a_day = wanted.rate * _DAY_S
    log = wanted.rate * per_call.wal_bytes
    lines = [
        (
            f"For {wanted.rate:,.0f} calls a second of {wanted.organizations:,} organizations, on "
            f"machines of {wanted.cores} cores that are used to "
            f"{wanted.utilisation:.0%}:"
        ),
        "",
        "| what | per call | needed |",
        "|---|---|---|",
        (
            f"| gateways | {per_call.gateway_us:.0f} µs of CPU | {gateways} machines, "
            f"{workers} workers, {workers * per_call.resident_mb / 1000:,.0f} GB |"
        ),
        f"| shards of the database | {per_call.database_us:.0f} µs of CPU | {shards} machines |",
        f"| calls of one shard | | {wanted.rate / shards:,.0f} a second |",
        (
            f"| log | {per_call.wal_bytes:,.0f} bytes | {log / shards / 1e6:,.1f} MB a second and shard, "
            f"{log * _DAY_S / 1e12:,.1f} TB a day |"
        ),
        "",
        "| table | bytes of a row | of its indexes | rows a day | a day | kept | in all |",
        "|---|---|---|---|---|---|---|",
    ]
    total = 0.0
    for one in grown:
        rows = one.rows * calls_a_day
        if one.table in _ROLL_UP_ROWS:
            rows = min(calls_a_day, _ROLL_UP_ROWS[one.table] * wanted.organizations)
        size = (one.heap + one.indexes) / one.rows * rows
        total += size * _KEPT_DAYS[one.table]
        lines.append(
            f"| {one.table} | {one.heap / one.rows:,.0f} | {one.indexes / one.rows:,.0f} "
            f"| {rows / 1e6:,.0f} million | {size / 1e12:,.2f} TB | {_KEPT_DAYS[one.table]} days "
            f"| {size * _KEPT_DAYS[one.table] / 1e12:,.0f} TB |"
        )
    lines += [
        "",
        f"Together {total / 1e12:,.0f} TB, {total / shards / 1e12:,.1f} TB on each shard.",
    ]
    return "\n".join(lines)


def _machines(us_per_call: float, wanted: Wanted) -> int:
    cores = wanted.rate * us_per_call / 1e6 / wanted.utilisation
    return math.ceil(cores / wanted.cores)


if __name__ == "__main__":
    main()
