"""Says on a terminal what a command is doing while it takes long. It writes to standard error, and
nothing at all in a pipe."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True, highlight=False).status(f"{what} ..."):
        yield
