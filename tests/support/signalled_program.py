"""Runs the program, and sends it a signal when one of its functions is called or returns.

This is a separate script, because the time has to be exact: `python signalled_program.py SIGTERM
Supervisor.run:call serve --config FILE`. Several moments, separated by commas, send several signals.
"""

import os
import signal
import sys
from types import FrameType

from tollkeeper.entry.commands.main import main

REACHED = "the moment was reached"


def _signal_at(moments: list[str], number: int) -> None:
    def watch(frame: FrameType, event: str, _value: object) -> None:
        if f"{frame.f_code.co_qualname}:{event}" == moments[0]:
            sys.setprofile(None)
            os.write(2, f"{REACHED}: {moments.pop(0)}\n".encode())
            if moments:
                sys.setprofile(watch)
            os.kill(os.getpid(), number)

    sys.setprofile(watch)


if __name__ == "__main__":
    _, name, moments, *line = sys.argv
    sys.argv = ["tollkeeper", *line]
    _signal_at(moments.split(","), signal.Signals[name])
    main()
