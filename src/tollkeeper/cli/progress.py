"""How a long command shows how far it is: on standard error, so that its output stays clean."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

# Called with how much is done, and of how much.
ReportProgress = Callable[[int, int], None]


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[ReportProgress]:
    """A bar on a terminal; in a pipe a line for each tenth."""
    if quiet:
        yield lambda _done, _total: None
    elif sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(label, total=None)
            yield lambda done, total: bars.update(bar, completed=done, total=total)
    else:
        yield _lines_for_tenths()


def _lines_for_tenths() -> ReportProgress:
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        if done * 10 // total > told:
            told = done * 10 // total
            sys.stderr.write(f"{done} of {total}\n")
            sys.stderr.flush()

    return tell


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Says on a terminal what a command is doing while it takes long; nothing at all in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True, highlight=False).status(f"{what} ..."):
        yield
