"""A logger for code that servers and commands share. It imports structlog with its first line: commands log
nothing, and most run for less time than the import takes."""

import logging
import sys
from typing import Any


class LateLogger:
    # On the class, for all loggers of the process.
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
    """Commands report failures in their output or in one line. Call it again after an import of structlog."""
    LateLogger.silenced = True
    structlog = sys.modules.get("structlog")
    if structlog is not None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def silence_again() -> None:
    """Silences logs if they were silenced before, after an import that may have imported structlog."""
    if LateLogger.silenced:
        silence_logs()


def allow_logs() -> None:
    LateLogger.silenced = False


def logs_are_for_people() -> bool:
    """Standard error is a terminal, so lines are text, not JSON."""
    return sys.stderr.isatty()
