"""`python -m bench.steps`: how many bytecodes one chat request takes, and what one of them costs.

The first figure is the same on every run, so it says whether a change makes the way shorter. The second
is measured with few and with many calls at a time: the more of them take the same step one after the
other, the more of the interpreter and of the program is still in the caches of the processor.
"""

import argparse
import os
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.processes import tree
from bench.profile import load, start_gateway

_HERE = Path(__file__).parent
_CROWDS = (4, 8, 32, 96)
_ROUNDS = 3
_WORKER = b"tollkeeper.hosting.worker"
# The count makes every step many times as long, which is no overload of the machine.
_NO_OVERLOAD = {"TOLLKEEPER_LIMITS__OVERLOAD_TURN_S": "0"}


@dataclass(frozen=True)
class Function:
    """What one function takes of one request, on average."""

    name: str
    steps: float
    entries: float


def main() -> None:
    options = _options()
    functions = _counted(options.requests)
    print(
        f"one chat request: {sum(one.steps for one in functions):,.0f} bytecodes, "
        f"{sum(one.entries for one in functions):,.0f} entries into "
        f"{sum(one.entries > 1 / 64 for one in functions)} functions\n"
    )
    print("| bytecodes | entries | function |\n|---|---|---|")
    for one in functions[: options.functions]:
        print(f"| {one.steps:.0f} | {one.entries:.2f} | {_shown(one.name)} |")
    if not options.no_times:
        print("\n| calls at a time | CPU per request |\n|---|---|")
        for connections, us in _times(options.requests).items():
            print(f"| {connections} | {us:.0f} us |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.steps")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--functions", type=int, default=30, help="how many of them are printed")
    parser.add_argument("--no-times", action="store_true", help="only count")
    return parser.parse_args()


def _counted(requests: int) -> list[Function]:
    """Those with the most bytecodes first."""
    with tempfile.NamedTemporaryFile(suffix=".steps") as file:
        own = {"BENCH_STEPS": file.name, "PYTHONPATH": str(_HERE / "counter")}
        os.environ |= own | _NO_OVERLOAD
        try:
            with ExitStack() as stack:
                target = start_gateway(stack)
                load(target, requests)
                for worker in _workers(target.pid):
                    os.kill(worker, signal.SIGUSR1)
                load(target, requests)
        finally:
            for name in own | _NO_OVERLOAD:
                del os.environ[name]
        found = [line.split(" ", 2) for line in Path(file.name).read_text().splitlines()]
    functions = [
        Function(name, int(steps) / requests, int(entries) / requests)
        for steps, entries, name in found
    ]
    return sorted(functions, key=lambda one: one.steps, reverse=True)


def _times(requests: int) -> dict[int, float]:
    """CPU per request in microseconds, by the number of calls at a time: the least of the rounds."""
    with ExitStack() as stack:
        target = start_gateway(stack)
        load(target, requests)
        rounds = [
            {crowd: load(target, requests, crowd) for crowd in _CROWDS} for _ in range(_ROUNDS)
        ]
    return {crowd: min(one[crowd] for one in rounds) for crowd in _CROWDS}


def _workers(pid: int) -> list[int]:
    return [found for found in tree(pid) if _WORKER in Path(f"/proc/{found}/cmdline").read_bytes()]


def _shown(name: str) -> str:
    """The name with the end of its path."""
    function, _, path = name.removesuffix(")").partition(" (")
    for folder in ("/src/tollkeeper/", "/site-packages/", "/lib/python3.11/"):
        path = path.rpartition(folder)[2]
    return f"{function} ({path})"


if __name__ == "__main__":
    main()
