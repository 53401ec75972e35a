"""Implements `make fuzz`: fuzzes every target, prints a table, and keeps the inputs that break a target."""

import argparse
import sys

from tests.fuzz.campaign import Campaign, fuzz, install_fuzzer
from tests.fuzz.targets import TARGETS
from tests.journeys.clients.environments import NotInstalled

_HEADS = ("target", "executions", "edges", "corpus", "found")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", help=", ".join(TARGETS))
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}")
    try:
        python = install_fuzzer()
    except NotInstalled as exc:
        sys.exit(str(exc))
    broken = False
    _show(*_HEADS)
    for name in options.targets or TARGETS:
        campaign = fuzz(python, name, options.seconds)
        broken |= campaign.crash is not None
        _show_campaign(campaign)
    sys.exit(broken)


def _show_campaign(campaign: Campaign) -> None:
    numbers = (f"{n:,}" for n in (campaign.executions, campaign.edges, campaign.corpus))
    _show(campaign.target, *numbers, "nothing" if campaign.crash is None else str(campaign.crash))
    if campaign.crash is not None:
        _write(campaign.said[-4000:])


def _show(*cells: str) -> None:
    name, *numbers, found = cells
    _write("  ".join([name.ljust(16), *(number.rjust(12) for number in numbers), found]))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
