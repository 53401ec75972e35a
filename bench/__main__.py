"""`make bench`: prints the table and writes bench/result.json.

Compare only figures of the same run."""

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench import rounds
from bench.figures import Target, stream_resident_kib, worker_resident_mb
from bench.gateway import MODELS, Running, tollkeeper
from bench.machine import describe_machine, exit_on_signal
from bench.peer_programs import PEERS
from bench.peers import running_peers
from bench.rounds import Run
from bench.table import OURS, as_markdown, rows
from bench.upstream import HELD, PACES, serving_upstream
from bench.variants import running_variants

_RESULT = Path(__file__).parent / "result.json"
_ORGANIZATIONS = 100
_OPEN_STREAMS = 200


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, exit_on_signal)
    started = time.monotonic()
    machine = describe_machine()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        # If this runs as root, the account that runs PostgreSQL must be able to enter the folder.
        folder.chmod(0o711)
        upstream = stack.enter_context(serving_upstream())
        gateway = stack.enter_context(tollkeeper(folder, upstream, tenants=_ORGANIZATIONS + 1))
        idle = {"start_s": gateway.start_s, "idle_resident_mb": worker_resident_mb(gateway.pid)}
        _report_progress(f"starting peers: {', '.join(options.peers) or 'none'}")
        peers = stack.enter_context(running_peers(options.peers, upstream, folder))
        variants = stack.enter_context(running_variants(upstream, folder))
        not_asked = [name for name in PEERS if name not in options.peers]
        run = Run(
            gateway,
            [_gateway_target(gateway), *variants.targets, *peers.targets],
            options.rounds,
            options.requests,
            dict.fromkeys(not_asked, "not asked for") | peers.missing | variants.missing,
            idle,
        )
        _measure(
            run,
            Target("upstream", upstream, 0, {name: name for name in PACES}, [{}]),
            options.settled,
        )
    table = rows(run.figures, run.missing)
    print(f"{machine}, {time.monotonic() - started:.0f} s\n\n{as_markdown(table)}")
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "figures": {name: round(value, 3) for name, value in run.figures.items()},
        "not_measured": run.missing,
        "table": [asdict(row) for row in table],
    }
    _RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def _measure(run: Run, direct: Target, settled: int) -> None:
    _report_progress("chat requests")
    rounds.requests(run)
    _report_progress("streams")
    rounds.streams(run)
    _report_progress("first bytes")
    rounds.first_bytes(run, direct)
    _report_progress("a hot organization")
    rounds.hot_organization(
        run, [_authorization(run.gateway, number) for number in range(_ORGANIZATIONS + 1)]
    )
    _report_progress("open streams")
    run.figures["stream_resident_kib"] = stream_resident_kib(run.ours, HELD, _OPEN_STREAMS)
    _report_progress("reports")
    rounds.report_costs(run, settled)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--settled", type=int, default=1_000_000)
    parser.add_argument("--peers", type=_peers, default=list(PEERS), help=",".join(PEERS))
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=[])
    return parser.parse_args()


def _peers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(unknown)}")
    return names


def _report_progress(step: str) -> None:
    print(f"... {step}", file=sys.stderr, flush=True)


def _gateway_target(gateway: Running) -> Target:
    return Target(OURS, gateway.port, gateway.pid, MODELS, [_authorization(gateway, 0)])


def _authorization(gateway: Running, tenant: int) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.tenants[tenant].key}"}


if __name__ == "__main__":
    main()
