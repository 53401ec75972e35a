"""`make load`: prints the table and writes bench/load.json. Compare only figures of the same run."""

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import uvloop

from bench.gateway import Running, tollkeeper
from bench.machine import describe_machine, exit_on_signal
from bench.stress.programme import Programme
from bench.stress.verdicts import rows
from bench.table import as_markdown
from bench.upstream import serving_upstream

_RESULT = Path(__file__).parent.parent / "load.json"
# One organization is quiet, one is hostile, and the others share the load.
_ORGANIZATIONS = 12
_FLOODED_ORGANIZATIONS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="make load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, exit_on_signal)
    machine, started = describe_machine(), time.monotonic()
    with serving_upstream("bench.stress.faulty_upstream") as upstream:
        start = partial(_gateway, upstream, options.workers)
        with start(_ORGANIZATIONS) as gateway:
            programme = Programme(gateway, partial(start, _FLOODED_ORGANIZATIONS))
            uvloop.run(programme.run(options.rounds))
    table = rows(programme)
    machine = f"{machine} and after it {os.getloadavg()[0]:.1f}"
    print(f"{machine}, {time.monotonic() - started:.0f} s\n\n{as_markdown(table)}")
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "knee_per_second": programme.knee_per_second,
        "beside": [asdict(found) for found in programme.beside],
        "elsewhere_p50_ms": {name: quiet.p50_ms for name, quiet in programme.elsewhere.items()},
        "table": [asdict(row) for row in table],
    }
    _RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def _gateway(upstream_port: int, workers: int, tenants: int) -> Iterator[Running]:
    """Starts a gateway with a new database."""
    with tempfile.TemporaryDirectory(prefix="tkl-") as made:
        folder = Path(made)
        # If this runs as root, the account that runs PostgreSQL must be able to enter the folder.
        folder.chmod(0o711)
        with tollkeeper(folder, upstream_port, tenants=tenants, workers=workers) as running:
            yield running


if __name__ == "__main__":
    main()
