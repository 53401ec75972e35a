"""Assigns sampled stacks to the stages of a call, and defines the budget of each stage."""

from typing import Final

LOOP: Final = "event loop, sockets, HTTP on both sides"
REQUEST: Final = "request to call: key, headers, JSON, checks, estimate"
SCRIPT: Final = "the script of the call and the exchange with the backend"
HOLDS: Final = "holds, client side"
SETTLEMENTS: Final = "settlements, client side"
REST: Final = "activity, metrics, the rest"

# Microseconds of CPU per request, on the machine for which the budgets were set.
BUDGET_US = {LOOP: 60, REQUEST: 30, SCRIPT: 35, HOLDS: 25, SETTLEMENTS: 20, REST: 10}

# The first entry that is part of a frame's path decides. Files that several stages use (most of the
# domain and of storage) are not listed, so the frame that called them decides.
_FILES = (
    ("tollkeeper/hosting/", LOOP),
    ("tollkeeper/backends/transport/", LOOP),
    ("tollkeeper/services/ledger/hold", HOLDS),
    ("tollkeeper/services/calls/admission", HOLDS),
    ("tollkeeper/services/ledger/admissibility", HOLDS),
    ("tollkeeper/services/ledger/", SETTLEMENTS),
    ("tollkeeper/storage/resolutions", SETTLEMENTS),
    ("tollkeeper/services/calls/activity", REST),
    ("tollkeeper/services/calls/recorder", REST),
    ("tollkeeper/services/calls/metrics", REST),
    ("tollkeeper/storage/activity", REST),
    ("tollkeeper/services/request_log", REST),
    ("tollkeeper/services/", SCRIPT),
    ("tollkeeper/backends/", SCRIPT),
    ("tollkeeper/api/", REQUEST),
)


def stage_of(frames: list[str]) -> str:
    """Returns the stage of a stack. The innermost listed frame decides. `frames` begins with the outermost."""
    for frame in reversed(frames):
        for file, stage in _FILES:
            if file in frame:
                return stage
    return LOOP
