"""Runs variants of the measured gateway: with two workers, and on an optimised interpreter."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.journeys.clients.environments import NotInstalled

from bench.figures import Target
from bench.gateway import MODELS, Running, tollkeeper
from bench.interpreters import optimised_python
from bench.peers import Peers
from bench.table import OPTIMISED, TWO_WORKERS

_SOURCES = Path(__file__).parent.parent / "src"


@contextmanager
def running_variants(upstream: int, folder: Path) -> Iterator[Peers]:
    """Starts each variant with a separate database."""
    found = Peers([], {})
    with ExitStack() as stack:

        def add(name: str, running: Running) -> None:
            authorization = {"authorization": f"Bearer {running.tenants[0].key}"}
            found.targets.append(Target(name, running.port, running.pid, MODELS, [authorization]))

        two = tollkeeper(_home(folder, TWO_WORKERS), upstream, tenants=1, workers=2)
        add(TWO_WORKERS, stack.enter_context(two))
        try:
            python = optimised_python()
        except NotInstalled as exc:
            found.missing[OPTIMISED] = str(exc)
        else:
            # The package itself is not installed in that environment.
            os.environ["PYTHONPATH"] = str(_SOURCES)
            optimised = tollkeeper(_home(folder, OPTIMISED), upstream, tenants=1, python=python)
            add(OPTIMISED, stack.enter_context(optimised))
            del os.environ["PYTHONPATH"]
        yield found


def _home(folder: Path, name: str) -> Path:
    home = folder / name
    home.mkdir(mode=0o711)
    return home
