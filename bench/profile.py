"""`make profile`: samples a loaded worker, prints CPU per request by stage, draws a flame graph.

The CPU per request comes from the kernel, measured without the sampler; the samples only divide it.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.journeys.clients.environments import python_environment

from bench.figures import Target, measure
from bench.gateway import MODELS, tollkeeper
from bench.interpreters import own_build
from bench.processes import named, tree
from bench.stages import BUDGET_US, stage_of
from bench.upstream import PACED, serving_upstream

_HERE = Path(__file__).parent
_RATE = 400
_CONNECTIONS = 32


def main() -> None:
    options = _options()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
        folder.chmod(0o711)
        upstream = stack.enter_context(serving_upstream())
        gateway = stack.enter_context(tollkeeper(folder, upstream, tenants=1))
        authorization = {"authorization": f"Bearer {gateway.tenants[0].key}"}
        target = Target("tollkeeper", gateway.port, gateway.pid, MODELS, [authorization])
        (worker,) = named(tree(gateway.pid), "tollkeeper.hosting.worker")
        _load(target, options.requests // 4)
        us_per_request = _load(target, options.requests)
        stacks = folder / "stacks"
        for form, file in (("raw", stacks), ("flamegraph", options.flame_graph)):
            with _sampled(worker, form, file):
                _load(target, options.requests)
        samples = _samples(stacks)
    print(f"Python {sys.version.split()[0]} {own_build()}, {us_per_request:.0f} us per request\n")
    print(_table(samples, us_per_request))
    print(f"\nflame graph: {options.flame_graph}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make profile")
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--flame-graph", type=Path, default=_HERE / "flame.svg")
    return parser.parse_args()


def _load(target: Target, count: int) -> float:
    """CPU of the gateway's process tree per request, in microseconds."""
    result, spent = measure(target, PACED, stream=False, connections=_CONNECTIONS, count=count)
    return 1e6 * spent.cpu_s / result.requests


@contextmanager
def _sampled(pid: int, form: str, file: Path) -> Iterator[None]:
    """Samples a process until the context ends, without stopping it for a sample."""
    program = python_environment("py-spy", _HERE / "locks").with_name("py-spy")
    command: list[str | Path] = [
        program,
        "record",
        "--pid",
        str(pid),
        "--rate",
        str(_RATE),
        "--nonblocking",
    ]
    with subprocess.Popen(
        [*command, "--duration", "unlimited", "--format", form, "--output", file],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as sampler:
        try:
            yield
        finally:
            # On this signal the sampler writes its file.
            sampler.send_signal(signal.SIGINT)
            sampler.wait(60)


def _samples(stacks: Path) -> Counter[str]:
    """Samples by stage. A line is `frame;frame;frame count`."""
    samples: Counter[str] = Counter()
    for line in stacks.read_text().splitlines():
        frames, _, count = line.rpartition(" ")
        samples[stage_of(frames.split(";"))] += int(count)
    return samples


def _table(samples: Counter[str], us_per_request: float) -> str:
    total = samples.total()
    lines = ["| stage | measured | budget |", "|---|---|---|"]
    for stage, budget in BUDGET_US.items():
        lines.append(
            f"| {stage} | {us_per_request * samples[stage] / total:.0f} us | {budget} us |"
        )
    lines.append(f"| sum | {us_per_request:.0f} us | {sum(BUDGET_US.values())} us |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
