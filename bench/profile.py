"""`make profile`: samples a loaded worker, prints the CPU per request by stage and draws a flame graph.

The kernel reports the CPU per request of a run without the sampler. The samples only divide it by stage.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Target, measure
from bench.flame import flame_graph
from bench.gateway import MODELS, tollkeeper
from bench.interpreters import own_build
from bench.stages import BUDGET_US, stage_of
from bench.upstream import PACED, serving_upstream

_HERE = Path(__file__).parent
_CONNECTIONS = 32


def main() -> None:
    options = _options()
    us_per_request = _measured(options.requests)
    samples = _sampled(options.requests)
    interpreter = f"Python {sys.version.split()[0]} {own_build()}"
    title = f"one chat request: {us_per_request:.0f} us of CPU, {interpreter}"
    options.flame_graph.write_text(flame_graph(samples, title))
    if options.stacks is not None:
        options.stacks.write_text("".join(f"{stack} {n}\n" for stack, n in samples.items()))
    print(f"{title}\n\n{_table(samples, us_per_request)}\n\nflame graph: {options.flame_graph}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make profile")
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--flame-graph", type=Path, default=_HERE / "flame.svg")
    parser.add_argument("--stacks", type=Path, help="also write the sampled stacks to this file")
    return parser.parse_args()


def _measured(requests: int) -> float:
    """Returns the CPU per request of the gateway's process tree in microseconds, without the sampler."""
    with ExitStack() as stack:
        target = start_gateway(stack)
        load(target, requests // 4)
        return load(target, requests)


def _sampled(requests: int) -> Counter[str]:
    """Returns the number of samples of each stack, without the stacks of imports at the start."""
    with tempfile.NamedTemporaryFile(suffix=".stacks") as file:
        os.environ |= {"BENCH_SAMPLES": file.name, "PYTHONPATH": str(_HERE / "sampler")}
        with ExitStack() as stack:
            load(start_gateway(stack), requests)
        # The worker has written its samples, because it has ended.
        for name in ("BENCH_SAMPLES", "PYTHONPATH"):
            del os.environ[name]
        samples: Counter[str] = Counter()
        for line in Path(file.name).read_text().splitlines():
            frames, _, count = line.rpartition(" ")
            if "importlib" not in frames:
                samples[frames] += int(count)
        return samples


def start_gateway(stack: ExitStack) -> Target:
    """Starts an upstream and a gateway with one tenant. Both end with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tkb-")))
    folder.chmod(0o711)
    upstream = stack.enter_context(serving_upstream())
    gateway = stack.enter_context(tollkeeper(folder, upstream, tenants=1))
    authorization = {"authorization": f"Bearer {gateway.tenants[0].key}"}
    return Target("tollkeeper", gateway.port, gateway.pid, MODELS, [authorization])


def load(target: Target, count: int, connections: int = _CONNECTIONS) -> float:
    """Sends requests and returns the CPU per request of the gateway's process tree in microseconds."""
    result, spent = measure(target, PACED, stream=False, connections=connections, count=count)
    return 1e6 * spent.cpu_s / result.requests


def _table(samples: Counter[str], us_per_request: float) -> str:
    stages: Counter[str] = Counter()
    for stack, count in samples.items():
        stages[stage_of(stack.split(";"))] += count
    total = stages.total()
    lines = ["| stage | measured | budget |", "|---|---|---|"]
    for stage, budget in BUDGET_US.items():
        lines.append(f"| {stage} | {us_per_request * stages[stage] / total:.0f} us | {budget} us |")
    lines.append(f"| sum | {us_per_request:.0f} us | {sum(BUDGET_US.values())} us |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
