"""uvicorn's HTTP/1.1 protocol, made fit to face the network alone.

llhttp refuses ambiguous framing; what it and uvicorn let through is refused here: headers that
drip in or never end, headers beyond a size, and answers without envelope or request id.
"""

import asyncio
from typing import Any
from uuid import uuid4

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from tollkeeper.api.envelope import render_error
from tollkeeper.domain.errors import InvalidRequest, TollkeeperError

_HEADERS_MAX = 100


class HeadersTooLarge(TollkeeperError):
    """The request's headers exceed the size limit."""


class HardenedProtocol(HttpToolsProtocol):
    """One connection. The limits are bound by `hardened_protocol`."""

    header_timeout_s: float
    header_bytes_max: int
    write_timeout_s: float

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_arrived()
        self.resume_writing()
        super().connection_lost(exc)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            leave = cycle.scope["state"].get("leave")
            if leave is not None:
                leave.left()

    def pause_writing(self) -> None:
        """The caller reads too slowly: from now on it has a while to catch up."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        # Only a request whose headers did not come in one piece pays for being watched.
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.header_bytes_max:
                self._refuse(431, HeadersTooLarge())
            elif self._header_timer is None:
                self._await_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        self._headers_arrived()
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        if size > self.header_bytes_max or len(self.headers) > _HEADERS_MAX:
            self._refuse(431, HeadersTooLarge())
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, InvalidRequest("This is not a valid HTTP request."))

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._headers_are_late)

    def _headers_arrived(self) -> None:
        self._in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_are_late(self) -> None:
        self._header_timer = None
        if self._header_bytes:
            self._refuse(408, InvalidRequest("The request's headers did not arrive in time."))
        else:
            self.transport.close()

    def _refuse(self, status: int, error: TollkeeperError) -> None:
        """An answer without the application: the request never became one."""
        if self.transport.is_closing():
            return
        rendered = render_error(error, str(uuid4()))
        head = [STATUS_LINE[status]]
        for name, value in rendered.headers:
            head += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", rendered.body]))
        self.transport.close()


def hardened_protocol(
    header_timeout_s: float, header_bytes_max: int, write_timeout_s: float
) -> type[HardenedProtocol]:
    """The protocol class with its limits bound; the server makes one object a connection."""
    limits = {
        "header_timeout_s": header_timeout_s,
        "header_bytes_max": header_bytes_max,
        "write_timeout_s": write_timeout_s,
    }
    return type("BoundProtocol", (HardenedProtocol,), limits)
