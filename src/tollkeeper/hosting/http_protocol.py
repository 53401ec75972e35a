"""uvicorn's HTTP/1.1 protocol, made fit to face the network alone.

llhttp refuses ambiguous framing; what it and uvicorn let through is refused here: headers that
drip in or never end, headers beyond a size, and answers without envelope or request id.
"""

import asyncio
from enum import Enum
from typing import Any
from uuid import uuid4

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from tollkeeper.api.http.envelope import BodyTimeout, HeadersTooLarge, render_error
from tollkeeper.domain.errors import InvalidRequest, TollkeeperError

_HEADERS_MAX = 100
# An answer may come before its request's body was read. So long the rest is read and dropped: to
# close at once would reset the connection, and the caller would lose the answer.
_LINGER_S = 2.0


class _Phase(Enum):
    IDLE = 0
    HEADERS = 1
    BODY = 2


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
        self._linger_timer: asyncio.TimerHandle | None = None
        self._phase = _Phase.IDLE
        # Bytes since something of substance came: headers in the making, or what is no body.
        self._loose_bytes = 0
        # The request that is being answered. `cycle` is the last one that came, which may wait.
        self._answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting_headers()
        self.resume_writing()
        super().connection_lost(exc)
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            disconnect = cycle.scope["state"].get("disconnect")
            if disconnect is not None:
                disconnect.disconnected()

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
        self._loose_bytes += len(data)
        super().data_received(data)
        # Only what did not come in one piece pays for being watched: headers in the making, empty
        # lines that begin no request, chunk extensions and trailers.
        if self._loose_bytes and self._phase is not _Phase.BODY and self._header_timer is None:
            self._await_headers()
        if self._loose_bytes > self.header_bytes_max:
            self._refuse(HeadersTooLarge())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _Phase.HEADERS

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is _Phase.HEADERS:
            super().on_header(name, value)
        # Else it is a trailer: what comes after the body was never authorised as a header.

    def on_headers_complete(self) -> None:
        self._stop_awaiting_headers()
        self._phase = _Phase.BODY
        self._loose_bytes = 0
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        if size > self.header_bytes_max or len(self.headers) > _HEADERS_MAX:
            self._refuse(HeadersTooLarge())
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Phase.IDLE
        self._loose_bytes = 0
        if self.transport.is_closing():
            return
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        super().on_message_complete()
        if not self.pipeline:
            # A large body has stopped the reading. It is all here now, and only who reads on sees
            # the caller leave.
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        unread = self._phase is _Phase.BODY and not self.pipeline
        super().on_response_complete()
        if unread and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest("This is not a valid HTTP request."))

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._headers_are_late)

    def _stop_awaiting_headers(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_are_late(self) -> None:
        self._header_timer = None
        if self._phase is _Phase.HEADERS:
            self._refuse(BodyTimeout("The request's headers did not arrive in time."))
        elif self._phase is _Phase.IDLE and self._nothing_runs():
            self.transport.close()

    def _nothing_runs(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _refuse(self, error: TollkeeperError) -> None:
        """An answer without the application: the request never became one."""
        if self.transport.is_closing():
            return
        rendered = render_error(error, str(uuid4()))
        head = [STATUS_LINE[rendered.status]]
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
