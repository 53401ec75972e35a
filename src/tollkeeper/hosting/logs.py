"""Structured logs: one JSON object per line on standard error, with values of bounded length.

No event may carry a secret.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

# A longer value is cut, so that a large request cannot fill the log.
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


def silence_logs() -> None:
    """For commands: a command reports a failure in its answer or in one line on standard error."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _bound_values(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LENGTH_MAX:
            # The end is kept, because the last line of a traceback names the error.
            event[key] = "..." + value[-_VALUE_LENGTH_MAX:]
    return event
