"""Provides a logger for code that both servers and commands use.

The logger imports the log library, structlog, only when it logs its first line. Commands log nothing, and most
of them run for less time than the import takes.
"""

import logging
import sys
from typing import Any


class LateLogger:
    # Set on the class, so it applies to all loggers of the process.
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
        import structlog  # noqa: PLC0415 - see the docstring of the module

        return structlog.get_logger(self._name)


def silence_logs() -> None:
    """Silences logs in a command, because a command reports failures in its output or in one line on
    standard error. Must be called again after the import of a module that imports structlog."""
    LateLogger.silenced = True
    structlog = sys.modules.get("structlog")
    if structlog is not None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def allow_logs() -> None:
    LateLogger.silenced = False


def logs_are_for_people() -> bool:
    """Tells whether log lines are plain text, because standard error is a terminal. Otherwise they are
    JSON."""
    return sys.stderr.isatty()
