"""How the server tells a request that its caller has left: a callback, not a task that waits."""

from collections.abc import Callable


class Disconnect:
    """Put into the request's scope; the connection calls `left` when it is lost."""

    def __init__(self) -> None:
        self._gone = False
        self._callback: Callable[[], None] | None = None

    def register(self, callback: Callable[[], None]) -> None:
        """The callback of the one who answers. It is called at once where it comes too late."""
        self._callback = callback
        if self._gone:
            callback()

    def disconnected(self) -> None:
        if not self._gone:
            self._gone = True
            if self._callback is not None:
                self._callback()
