"""Structured logs: one JSON object a line on standard error, bounded, without secrets."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

# A line longer than this is cut: an attacker's megabyte must not become ours.
_VALUE_LENGTH_MAX = 2000


def configure_logs() -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _bound_values,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # The server's own messages repeat what the envelope says, or are a caller's doing.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def silence_logs() -> None:
    """For a command: what goes wrong, its answer or the one line of its refusal says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _bound_values(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LENGTH_MAX:
            # The end of a traceback names the fault, the beginning only the way to it.
            event[key] = "..." + value[-_VALUE_LENGTH_MAX:]
    return event
