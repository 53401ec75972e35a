"""Structured logs on standard error, with values of limited length: text on a terminal, otherwise lines of
JSON. Libraries' warnings and errors come too. No event may have a secret."""

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

from tollkeeper.core.runtime.late_log import allow_logs, logs_are_for_people
from tollkeeper.core.runtime.output import log_output

# In characters, so that a large request can't fill the log.
_VALUE_LENGTH_MAX = 2000


def configure_logs() -> None:
    for_people = logs_are_for_people()
    allow_logs()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            if for_people
            else structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _cut_values,
            _line_for_people if for_people else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _QueuedLines(),
        cache_logger_on_first_use=True,
    )
    log_output.on_dropped = _report_dropped
    logging.basicConfig(handlers=[_LibraryHandler()], level=logging.WARNING, force=True)


class _QueuedLines:
    """In the thread of `log_output`."""

    def msg(self, line: str) -> None:
        log_output.write_line(line)

    debug = info = warning = error = critical = msg


def _report_dropped(count: int) -> None:
    structlog.get_logger("tollkeeper.logs").warning("log lines were dropped", count=count)


class _LibraryHandler(logging.Handler):
    """For libraries, such as the driver's pool."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(record.getMessage(), library=record.name, exc_info=record.exc_info)


def _line_for_people(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """`14:03:59 warning: what happened (name=value, ...)`, with a traceback on further lines. Without the
    level `info`, and without empty values."""
    time, level, text = event.pop("timestamp"), event.pop("level"), event.pop("event")
    exception = event.pop("exception", None)
    mark = "" if level == "info" else f"{level}: "
    values = ", ".join(f"{name}={_shown(value)}" for name, value in event.items() if value)
    line = f"{time} {mark}{text}" + (f" ({values})" if values else "")
    return line if exception is None else f"{line}\n{exception}"


def _shown(value: object) -> str:
    text = str(value)
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _cut_values(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LENGTH_MAX:
            # A traceback names the error in its last line.
            event[key] = "..." + value[-_VALUE_LENGTH_MAX:]
    return event
