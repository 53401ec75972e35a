"""Logs from code that commands also use. Importing the log library takes longer than most commands
run, and commands log nothing, so it is imported with the first log line."""

import logging
import sys
from typing import Any


class LateLogger:
    # For all loggers of the process.
    silenced = False

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **values: Any) -> None:
        if not self.silenced:
            self._logger().info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        if not self.silenced:
            self._logger().warning(event, **values)

    def error(self, event: str, **values: Any) -> None:
        if not self.silenced:
            self._logger().error(event, **values)

    def _logger(self) -> Any:
        import structlog  # noqa: PLC0415 - see above

        return structlog.get_logger(self._name)


def silence_logs() -> None:
    """Silences logs for commands, which report a failure in their answer or in one line on standard
    error. Call it again after imports that may have imported the log library."""
    LateLogger.silenced = True
    structlog = sys.modules.get("structlog")
    if structlog is not None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def allow_logs() -> None:
    LateLogger.silenced = False


def logs_are_for_people() -> bool:
    """Whether lines are text for a terminal. A file or a collector gets JSON."""
    return sys.stderr.isatty()
