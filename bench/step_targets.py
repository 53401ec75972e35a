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
    "tollkeeper/http/": HTTP,
    "tollkeeper/faces/strict_json": HTTP,
    "tollkeeper/faces/request": HTTP,
    "tollkeeper/faces/router": HTTP,
    "tollkeeper/faces/endpoint": HTTP,
    "tollkeeper/providers/transport/": HTTP,
    "tollkeeper/providers/": BACKEND,
    "tollkeeper/core/metering": BACKEND,
    "tollkeeper/core/port": BACKEND,
    "tollkeeper/core/usage": BACKEND,
    "tollkeeper/faces/chat/completion": ANSWER,
    "tollkeeper/faces/app": APPLICATION,
    "tollkeeper/faces/": REQUEST,
    "tollkeeper/tenants/models": REQUEST,
    "tollkeeper/calls/options": REQUEST,
    "tollkeeper/core/prompt.": REQUEST,
    "tollkeeper/calls/admission": PRICE,
    "tollkeeper/core/money": ENDED,
    "tollkeeper/core/activity": ENDED,
    "tollkeeper/calls/inference": SCRIPT,
    "tollkeeper/calls/running_calls": SCRIPT,
    "tollkeeper/calls/tab": SCRIPT,
    "tollkeeper/calls/plans": REQUEST,
    "tollkeeper/calls/": ENDED,
    "tollkeeper/reports/": ENDED,
    "tollkeeper/core/runtime/tallies": ENDED,
    "tollkeeper/core/runtime/request_log": ENDED,
    "tollkeeper/core/runtime/batches": LEDGER,
    "tollkeeper/core/runtime/": APPLICATION,
    "tollkeeper/core/": PRICE,
    "tollkeeper/policies/policy_set": PRICE,
    "tollkeeper/money/holds/values": PRICE,
    "tollkeeper/money/overage/": LEDGER,
    "tollkeeper/money/": LEDGER,
    "tollkeeper/database/": LEDGER,
    "tollkeeper/": APPLICATION,
}


def part_of(file: str) -> str:
    return next((part for start, part in _FILES.items() if file.startswith(start)), LIBRARIES)
