"""Tells a request that its caller has disconnected. A callback is cheaper than a waiting task."""

from collections.abc import Callable


class Disconnect:
    """Stands in the ASGI scope of a request. The server calls `disconnected` when the connection
    is lost."""

    def __init__(self) -> None:
        self._disconnected = False
        self._callback: Callable[[], None] | None = None

    def register(self, callback: Callable[[], None]) -> None:
        """Sets the one callback. If the caller has already disconnected, calls it at once."""
        self._callback = callback
        if self._disconnected:
            callback()

    def disconnected(self) -> None:
        if not self._disconnected:
            self._disconnected = True
            if self._callback is not None:
                self._callback()
