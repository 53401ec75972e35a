"""`make billing`: sends the same calls through each gateway and reports the costs that each one books."""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.journeys.clients.environments import NotInstalled

from bench.billing.explain import explain_scenarios, explain_trial
from bench.billing.gateways import GATEWAYS
from bench.billing.gateways.base import Booked, Gateway
from bench.billing.gateways.processes import NotStarted
from bench.billing.play import play_all, results
from bench.billing.report import (
    Run,
    as_json,
    as_markdown,
    draw,
    joined,
    json_text,
    left_out_as_markdown,
    trials_as_markdown,
)
from bench.billing.scenarios import LEFT_OUT, Scenario, left_out, load_scenarios
from bench.billing.trials import OnTrial, Trial, load_trials, run_trial
from bench.billing.upstream import Provider
from bench.machine import describe_machine

_HERE = Path(__file__).parent
_DOCS = _HERE.parents[1] / "docs"
# A complete run replaces the published results and the chart. Other results are written to `_RESULT`.
_PUBLISHED, _PICTURE = _DOCS / "billing.json", _DOCS / "images" / "billing.svg"
_RESULT = _HERE.parent / "billing.json"
# The number of gateways that run at the same time.
_SIDE_BY_SIDE = 3
_ALL = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def main() -> None:
    options = _options()
    if options.explain:
        for name in options.gateways:
            _explain(GATEWAYS[name], options.explain)
        return
    scenarios = load_scenarios()
    started = time.monotonic()
    runs = _run_all(options.gateways, scenarios, load_trials() if options.trials else [])
    cpu_s = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in _ALL)
    machine = f"{describe_machine()}, {time.monotonic() - started:.0f} s, {cpu_s:.0f} s of CPU time"
    # Some cases are left out although no exchange of them is recorded.
    omitted = left_out() | LEFT_OUT
    tables = (as_markdown(runs), trials_as_markdown(runs), left_out_as_markdown(omitted))
    print("\n\n".join([machine, *tables]))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kinds = {scenario.name: scenario.kind for scenario in scenarios}
    text = json_text(as_json(runs, kinds, omitted, machine, at))
    complete = _is_complete(options, runs)
    written = _PUBLISHED if complete else _RESULT
    written.write_text(text)
    if complete:
        _PICTURE.write_text(draw(runs))
    _say(f"the results are in {written}")


def _is_complete(options: argparse.Namespace, runs: list[Run]) -> bool:
    """Return whether the run may replace the published files: all gateways and all trials could run."""
    everything = set(options.gateways) == set(GATEWAYS) and options.trials
    return everything and all(run.missing is None for run in runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make billing")
    known = list(GATEWAYS)
    parser.add_argument(
        *("--gateways", "--gateway"),
        type=lambda text: text.split(","),
        default=known,
        help=",".join(known),
    )
    parser.add_argument(
        "--no-trials", dest="trials", action="store_false", help="no races or kills"
    )
    parser.add_argument(
        "--explain",
        metavar="NAME,…",
        type=lambda text: text.split(","),
        default=[],
        help="play some scenarios or trials and print all of it",
    )
    options = parser.parse_args()
    playable = {scenario.name for scenario in load_scenarios()}
    playable |= {trial.name for trial in load_trials()}
    if unknown := [name for name in options.explain if name not in playable]:
        parser.error(f"no such scenario or trial: {', '.join(unknown)}")
    if unknown := [name for name in options.gateways if name not in GATEWAYS]:
        parser.error(f"no such gateway: {', '.join(unknown)}")
    return options


def _parts(names: list[str], trials: list[Trial]) -> list[tuple[str, int]]:
    """Return the runs as gateway name and process count: 1 process, and each count that a trial needs."""
    numbers = {1} | {trial.processes for trial in trials}
    return [(name, number) for number in sorted(numbers) for name in names]


def _run_all(names: list[str], scenarios: list[Scenario], trials: list[Trial]) -> list[Run]:
    """Run the gateways. Several run at once, because a gateway mostly waits or is still starting."""
    parts = _parts(names, trials)
    with ProcessPoolExecutor(_SIDE_BY_SIDE) as processes:
        found = processes.map(partial(_run_part, scenarios, trials), parts)
        runs = dict(zip(parts, found, strict=True))
    return [joined([runs[part] for part in parts if part[0] == name]) for name in names]


def _run_part(scenarios: list[Scenario], trials: list[Trial], part: tuple[str, int]) -> Run:
    name, processes = part
    wanted = [trial for trial in trials if trial.processes == processes]
    return asyncio.run(_run(GATEWAYS[name], scenarios if processes == 1 else [], wanted))


async def _run(gateway: Gateway, scenarios: list[Scenario], trials: list[Trial]) -> Run:
    marks_unknown = getattr(gateway, "marks_unknown_costs", True)
    run = Run(gateway.name, gateway.version, [], [], {}, marks_unknown=marks_unknown)
    not_offered = {
        scenario.name: reason
        for scenario in scenarios
        if (reason := gateway.not_offered(scenario)) is not None
    }
    offered = [scenario for scenario in scenarios if scenario.name not in not_offered]
    for trial in trials:
        if (reason := gateway.not_run(trial)) is not None:
            run.trials_not_run[trial.name] = reason
    wanted = [trial for trial in trials if trial.name not in run.trials_not_run]
    answers: dict[str, str] = {}
    books: dict[str, Booked] = {}
    try:
        async with Provider(scenarios) as provider, AsyncExitStack() as stack:
            if offered or wanted:
                _say(f"{gateway.name} starts")
                folder = stack.enter_context(temporary_folder())
                session = await stack.enter_async_context(
                    gateway.running(folder, provider.port, offered, wanted)
                )
            if offered:
                _say(f"{gateway.name}: {len(offered)} scenarios")
                answers, books = await play_all(session, provider, offered)
            run.results.extend(results(scenarios, provider, answers, books, not_offered))
            for trial in wanted:
                _say(f"{gateway.name}: {trial.name}")
                assert isinstance(session, OnTrial), "the gateway says why it is not put on trial"
                run.trials.append(await run_trial(session, provider, trial))
    except (NotInstalled, NotStarted) as exc:
        reason = f"could not run here: {exc}"
        not_run = dict.fromkeys((trial.name for trial in trials), reason)
        return replace(run, missing=reason, trials_not_run=not_run)
    return replace(run, setup=gateway.setup())


def _explain(gateway: Gateway, names: list[str]) -> None:
    """Play the named scenarios together, and then each named trial with a gateway of its own."""
    chosen = [scenario for scenario in load_scenarios() if scenario.name in names]
    if chosen:
        with temporary_folder() as folder:
            asyncio.run(explain_scenarios(gateway, chosen, folder))
    for trial in load_trials():
        if trial.name in names:
            with temporary_folder() as folder:
                asyncio.run(explain_trial(gateway, trial, folder))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for a gateway's files. The account that runs PostgreSQL can enter it."""
    with tempfile.TemporaryDirectory(prefix="tkb-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def _say(step: str) -> None:
    print(f"... {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
