"""`make billing`: the same provider traffic through each gateway, and what each of them books."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.journeys.clients.environments import NotInstalled

from bench.billing.gateways import GATEWAYS
from bench.billing.gateways.base import Booked, Gateway
from bench.billing.gateways.processes import NotStarted
from bench.billing.play import play_all, results
from bench.billing.report import Run, as_json, as_markdown, draw
from bench.billing.scenarios import Scenario, load_scenarios
from bench.billing.trials import load_trials, run_trial
from bench.billing.upstream import Provider
from bench.machine import describe_machine

_HERE = Path(__file__).parent
_RESULT = _HERE.parent / "billing.json"
_PICTURE = _HERE.parents[1] / "docs" / "images" / "billing.svg"


def main() -> None:
    options = _options()
    scenarios = load_scenarios()
    if options.explain:
        [scenario] = [found for found in scenarios if found.name == options.explain]
        [gateway] = [GATEWAYS[name] for name in options.gateways[:1]]
        asyncio.run(_explain(gateway, scenario))
        return
    started = time.monotonic()
    runs = [
        asyncio.run(_run(GATEWAYS[name], scenarios, trials=options.trials))
        for name in options.gateways
    ]
    machine = describe_machine()
    print(f"{machine}, {time.monotonic() - started:.0f} s\n\n{as_markdown(runs)}")
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
        "--explain", metavar="SCENARIO", help="play one scenario and print all of it"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.gateways if name not in GATEWAYS]:
        parser.error(f"no such gateway: {', '.join(unknown)}")
    return options


async def _run(gateway: Gateway, scenarios: list[Scenario], *, trials: bool) -> Run:
    not_offered = {
        scenario.name: reason
        for scenario in scenarios
        if (reason := gateway.not_offered(scenario)) is not None
    }
    offered = [scenario for scenario in scenarios if scenario.name not in not_offered]
    run = Run(gateway.name, gateway.version, [], [], {})
    try:
        async with Provider(scenarios) as provider:
            answers: dict[str, str] = {}
            books: dict[str, Booked] = {}
            if offered:
                _say(f"{gateway.name}: {len(offered)} scenarios")
                with temporary_folder() as folder:
                    async with gateway.running(folder, provider.port, offered) as session:
                        answers, books = await play_all(session, provider, offered)
            run.results.extend(results(scenarios, provider, answers, books, not_offered))
        for trial in load_trials() if trials else ():
            starter = gateway.trial_starter(trial)
            if isinstance(starter, str):
                run.trials_not_run[trial.name] = starter
                continue
            _say(f"{gateway.name}: {trial.name}")
            with temporary_folder() as folder:
                run.trials.append(await run_trial(starter, folder, trial))
    except (NotInstalled, NotStarted) as exc:
        return Run(gateway.name, gateway.version, [], [], {}, f"could not run here: {exc}")
    return run


async def _explain(gateway: Gateway, scenario: Scenario) -> None:
    """Play one scenario. Prints the exchange, the gateway's record and the arithmetic."""
    print(f"{scenario.name}: {scenario.shows}\nprovider: {scenario.exchange.who}")
    if (reason := gateway.not_offered(scenario)) is not None:
        print(f"\n{gateway.name} does not offer this: {reason}")
        return
    with temporary_folder() as folder:
        async with (
            Provider([scenario]) as provider,
            gateway.running(folder, provider.port, [scenario]) as session,
        ):
            sent = session.request(scenario)
            answers, books = await play_all(session, provider, [scenario])
            calls = provider.calls[scenario.name]
    [result] = results([scenario], provider, answers, books, {})
    print(f"\nthe client sends to {sent.url}\n{json.dumps(sent.body)[:4000]}")
    for call in calls:
        print(
            f"\nthe gateway sends to the provider\n{call.head.decode()}{call.body.decode()[:4000]}"
        )
    print(f"\nthe provider answers\n{json.dumps(scenario.exchange.answer, indent=1)[:8000]}")
    print(f"\nthe client gets\n{answers[scenario.name][:4000]}")
    record = json.dumps(books[scenario.name].record, indent=1, default=str)
    print(f"\nthe record of {gateway.name}\n{record}")
    print(f"\nthe rule: {scenario.truth.source}")
    print("\n".join(scenario.truth.arithmetic))
    certain = "" if result.certain else ", marked as estimated or open"
    print(f"\ntrue {result.true}, booked {result.booked}{certain}, error {result.error}")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for a gateway's files, which the account that runs PostgreSQL can enter."""
    with tempfile.TemporaryDirectory(prefix="tkb-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def _say(step: str) -> None:
    print(f"... {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
