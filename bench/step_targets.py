"""Defines the parts of a plain call's path, and the highest number of bytecodes per call of each part.

A target is the figure of the present code. Lower it whenever the code gets shorter. Libraries have no
target, because their work for a call depends on the sizes of batches.
"""

from typing import Final

HTTP: Final = "HTTP, both sides"
APPLICATION: Final = "application, key, routing, overload, timeouts"
REQUEST: Final = "request to call"
PRICE: Final = "size, bounds, price"
LEDGER: Final = "ledger: queue, batch, SQL, both transactions"
SCRIPT: Final = "call script"
BACKEND: Final = "backend: routing, replica, wire, usage"
ANSWER: Final = "answer"
ENDED: Final = "activity, metrics, log"
LIBRARIES: Final = "libraries"

TARGETS = {
    HTTP: 764,
    APPLICATION: 464,
    REQUEST: 417,
    PRICE: 553,
    LEDGER: 186,
    SCRIPT: 433,
    BACKEND: 757,
    ANSWER: 209,
    ENDED: 145,
    LIBRARIES: 0,
}

# The target for each further piece of a stream that is only text.
PIECE_TARGET: Final = 201

# The first entry with which a file's path begins decides.
_FILES = {
    "tollkeeper/api/http/": HTTP,
    "tollkeeper/hosting/": HTTP,
    "tollkeeper/backends/transport/": HTTP,
    "tollkeeper/backends/": BACKEND,
    "tollkeeper/domain/metering": BACKEND,
    "tollkeeper/domain/usage": BACKEND,
    "tollkeeper/api/chat/completion": ANSWER,
    "tollkeeper/api/app": APPLICATION,
    "tollkeeper/api/": REQUEST,
    "tollkeeper/services/models": REQUEST,
    "tollkeeper/services/calls/options": REQUEST,
    "tollkeeper/domain/prompt.": REQUEST,
    "tollkeeper/services/calls/admission": PRICE,
    "tollkeeper/domain/admission": LEDGER,
    "tollkeeper/domain/spend": LEDGER,
    "tollkeeper/domain/money": ENDED,
    "tollkeeper/domain/activity": ENDED,
    "tollkeeper/domain/": PRICE,
    "tollkeeper/services/calls/inference": SCRIPT,
    "tollkeeper/services/calls/running_calls": SCRIPT,
    "tollkeeper/services/calls/tab": SCRIPT,
    "tollkeeper/services/calls/plans": REQUEST,
    "tollkeeper/services/calls/": ENDED,
    "tollkeeper/services/tallies": ENDED,
    "tollkeeper/services/request_log": ENDED,
    "tollkeeper/storage/activity": ENDED,
    "tollkeeper/storage/": LEDGER,
    "tollkeeper/services/ledger/": LEDGER,
    "tollkeeper/services/batches": LEDGER,
    "tollkeeper/": APPLICATION,
}


def part_of(file: str) -> str:
    return next((part for start, part in _FILES.items() if file.startswith(start)), LIBRARIES)
