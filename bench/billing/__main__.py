"""`make billing`: sends the same calls through each gateway and reports the costs that each one books."""

import argparse
import asyncio
import json
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
from tests.support.upstream_wire import Received

from bench.billing.gateways import GATEWAYS
from bench.billing.gateways.base import Booked, Gateway
from bench.billing.gateways.processes import NotStarted
from bench.billing.play import play_all, results
from bench.billing.report import Run, as_json, as_markdown, draw, joined, trials_as_markdown
from bench.billing.scenarios import Scenario, load_scenarios
from bench.billing.trials import OnTrial, Trial, load_trials, run_trial
from bench.billing.upstream import Provider
from bench.machine import describe_machine

_HERE = Path(__file__).parent
_RESULT = _HERE.parent / "billing.json"
# The number of gateways that run at the same time.
_SIDE_BY_SIDE = 3
_ALL = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_PICTURE = _HERE.parents[1] / "docs" / "images" / "billing.svg"


def main() -> None:
    options = _options()
    scenarios = load_scenarios()
    if options.explain:
        chosen = [found for found in scenarios if found.name in options.explain]
        for name in options.gateways:
            asyncio.run(_explain(GATEWAYS[name], chosen))
        return
    started = time.monotonic()
    runs = _run_all(options.gateways, scenarios, load_trials() if options.trials else [])
    cpu_s = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in _ALL)
    machine = f"{describe_machine()}, {time.monotonic() - started:.0f} s, {cpu_s:.0f} s of CPU time"
    print(f"{machine}\n\n{as_markdown(runs)}\n\n{trials_as_markdown(runs)}")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _RESULT.write_text(json.dumps(as_json(runs, machine, at), indent=1) + "\n")
    if set(options.gateways) == set(GATEWAYS):
        _PICTURE.write_text(draw(runs))


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
        metavar="SCENARIO,…",
        type=lambda text: text.split(","),
        default=[],
        help="play some scenarios and print all of it",
    )
    options = parser.parse_args()
    known_scenarios = {scenario.name for scenario in load_scenarios()}
    if unknown := [name for name in options.explain if name not in known_scenarios]:
        parser.error(f"no such scenario: {', '.join(unknown)}")
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
    run = Run(gateway.name, gateway.version, [], [], {})
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


async def _explain(gateway: Gateway, scenarios: list[Scenario]) -> None:
    """Play scenarios. For each one, print the exchange, the gateway's record and the calculation."""
    offered = []
    for scenario in scenarios:
        if (reason := gateway.not_offered(scenario)) is None:
            offered.append(scenario)
        else:
            print(f"{gateway.name} does not offer {scenario.name}: {reason}")
    if not offered:
        return
    with temporary_folder() as folder:
        async with (
            Provider(offered) as provider,
            gateway.running(folder, provider.port, offered, []) as session,
        ):
            sent = {scenario.name: session.request(scenario) for scenario in offered}
            answers, books = await play_all(session, provider, offered)
    for scenario, result in zip(
        offered, results(offered, provider, answers, books, {}), strict=True
    ):
        name = scenario.name
        print(f"\n=== {name}: {scenario.shows}\nprovider: {scenario.exchange.who}")
        print(f"\nthe client sends to {sent[name].url}\n{json.dumps(sent[name].body)[:4000]}")
        for call in provider.calls[name]:
            print(f"\nthe gateway sends to the provider\n{_shown(call)}")
        print(f"\nthe provider answers\n{json.dumps(scenario.exchange.answer, indent=1)[:8000]}")
        print(f"\nthe client gets\n{answers[name][:4000]}")
        record = json.dumps(books[name].record, indent=1, default=str)
        print(f"\nthe record of {gateway.name}\n{record}")
        print(f"\nthe rule: {scenario.truth.source}")
        print("\n".join(scenario.truth.arithmetic))
        certain = "" if result.certain else ", marked as estimated or open"
        print(f"\ntrue {result.true}, booked {result.booked}{certain}, error {result.error}")


def _shown(call: Received) -> str:
    return call.head.decode() + call.body.decode(errors="replace")[:4000]


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
