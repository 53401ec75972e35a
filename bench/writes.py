"""`python -m bench.writes`: counts PostgreSQL's writes for one plain chat request.

PostgreSQL's program `pg_waldump` reads the write-ahead log, so the number of rows and index entries and
their bytes are exact for each table and index. Full page images are counted separately, because they
depend on the time of the last checkpoint.
"""

import argparse
import re
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.figures import Target, measure
from bench.gateway import MODELS, Running, tollkeeper
from bench.processes import cpu_s, tree
from bench.upstream import PACED, serving_upstream
from tollkeeper.setup.embedded.postgres_programs import find_programs

_CONNECTIONS = 32
_ACTIVITY_DEADLINE_S = 60.0
_RECORD = re.compile(r"rmgr: (\S+) +len \(rec/tot\): +(\d+)/ *(\d+),.* desc: (\S+)")
_RELATION = re.compile(r"rel \d+/\d+/(\d+)")
# The ending of a partition's name. The partition of a day or a month counts for its table.
_PARTITION = re.compile(r"_(\d{8}|\d{6}|default)(?=_|$)")


@dataclass
class Writes:
    """The database's writes and the CPU time for a number of requests."""

    requests: int
    database_cpu_s: float
    gateway_cpu_s: float
    # The number and the bytes of log records, by relation and kind, without full page images.
    records: Counter[tuple[str, str]] = field(default_factory=Counter)
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    image_bytes: int = 0

    @property
    def log_bytes(self) -> float:
        """Return the bytes of log per request, without full page images."""
        return self.sizes.total() / self.requests

    def rows(self) -> dict[str, float]:
        """Return the number of written rows (also deleted or locked ones) and index entries per request."""
        found: Counter[str] = Counter()
        for (relation, kind), count in self.records.items():
            if kind in _ROWS:
                found[relation] += count
        return {relation: count / self.requests for relation, count in found.items()}


_ROWS = {
    *("Heap INSERT", "Heap INSERT+INIT", "Heap2 MULTI_INSERT", "Heap UPDATE", "Heap HOT_UPDATE"),
    *("Heap DELETE", "Heap LOCK", "Btree INSERT_LEAF", "Btree INSERT_POST"),
}


def count_writes(requests: int, *, tenants: int = 1, rounds: int = 1) -> list[Writes]:
    """Measure several rounds, after a round that creates plans, pages and roll-ups and does not count."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        folder.chmod(0o711)
        upstream = stack.enter_context(serving_upstream())
        gateway = stack.enter_context(tollkeeper(folder, upstream, tenants=tenants))
        headers = [{"authorization": f"Bearer {tenant.key}"} for tenant in gateway.tenants]
        target = Target("tollkeeper", gateway.port, gateway.pid, MODELS, headers)
        connection = stack.enter_context(psycopg.connect(gateway.conninfo, autocommit=True))
        return [_round(gateway, target, connection, requests) for _ in range(rounds + 1)][1:]


def _round(
    gateway: Running, target: Target, connection: psycopg.Connection, requests: int
) -> Writes:
    database = tree(gateway.database_pid)
    start, activity = _position(connection), _activity(connection)
    before, gateway_before = cpu_s(database), cpu_s(tree(gateway.pid))
    measure(target, PACED, stream=False, connections=_CONNECTIONS, count=requests)
    until = time.monotonic() + _ACTIVITY_DEADLINE_S
    while _activity(connection) < activity + requests:
        assert time.monotonic() < until, "the activity records were not written"
        time.sleep(0.1)
    writes = Writes(requests, cpu_s(database) - before, cpu_s(tree(gateway.pid)) - gateway_before)
    _read_log(writes, connection, start, _position(connection))
    return writes


def _position(connection: psycopg.Connection) -> str:
    [(position,)] = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
    return str(position)


def _activity(connection: psycopg.Connection) -> int:
    [(count,)] = connection.execute("SELECT coalesce(sum(requests), 0) FROM traffic").fetchall()
    return int(count)


def _read_log(writes: Writes, connection: psycopg.Connection, start: str, end: str) -> None:
    [(folder,)] = connection.execute("SHOW data_directory").fetchall()
    # The log is read as a file, so its buffers have to be written first.
    connection.execute("SET synchronous_commit TO on")
    connection.execute("SELECT pg_logical_emit_message(true, 'bench', '')")
    names = {
        str(node): _PARTITION.sub("", name)
        for node, name in connection.execute(
            "SELECT pg_relation_filenode(oid), relname FROM pg_class"
        )
    }
    program = find_programs(None) / "pg_waldump"
    dumped = subprocess.run(
        [program, "--path", f"{folder}/pg_wal", "--start", start, "--end", end],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for line in dumped.stdout.splitlines():
        found = _RECORD.match(line)
        assert found is not None, line
        manager, size, with_images, kind = found.groups()
        relation = _RELATION.search(line)
        name = names.get(relation[1], "other") if relation else "transactions"
        writes.records[name, f"{manager} {kind}"] += 1
        writes.sizes[name, f"{manager} {kind}"] += int(size)
        writes.image_bytes += int(with_images) - int(size)


def main() -> None:
    options = _options()
    rounds = count_writes(options.requests, tenants=options.tenants, rounds=options.rounds)
    print(
        "| round | log bytes | full page images | database CPU | gateway CPU |\n|--:|--:|--:|--:|--:|"
    )
    for number, one in enumerate(rounds, 1):
        print(
            f"| {number} | {one.log_bytes:,.0f} | {one.image_bytes / one.requests:,.0f} "
            f"| {1e6 * one.database_cpu_s / one.requests:.0f} us "
            f"| {1e6 * one.gateway_cpu_s / one.requests:.0f} us |"
        )
    last = rounds[-1]
    print("\n| relation | record | per request | bytes per request |\n|---|---|--:|--:|")
    for (relation, kind), size in last.sizes.most_common():
        if size / last.requests >= 1:
            count = last.records[relation, kind] / last.requests
            print(f"| {relation} | {kind} | {count:.2f} | {size / last.requests:.0f} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.writes")
    parser.add_argument("--requests", type=int, default=4000, help="in each round")
    parser.add_argument("--tenants", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
