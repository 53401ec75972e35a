"""Shows a long command's progress on standard error, so standard output has only the result."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

# Finished items, and all.
ReportProgress = Callable[[int, int], None]


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[ReportProgress]:
    """A bar on a terminal, otherwise a line per finished tenth. Nothing with `quiet`."""
    if quiet:
        yield lambda _done, _total: None
    elif sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(label, total=None)
            yield lambda done, total: bars.update(bar, completed=done, total=total)
    else:
        yield _lines_for_tenths()


def _lines_for_tenths() -> ReportProgress:
    printed_tenths = 0

    def report(done: int, total: int) -> None:
        nonlocal printed_tenths
        if done * 10 // total > printed_tenths:
            printed_tenths = done * 10 // total
            sys.stderr.write(f"{done} of {total}\n")
            sys.stderr.flush()

    return report


@contextmanager
def working(task: str, *, quiet: bool = False) -> Iterator[None]:
    """Names a running task, only on a terminal and unless `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True, highlight=False).status(f"{task} ..."):
        yield
