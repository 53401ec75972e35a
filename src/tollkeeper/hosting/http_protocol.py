"""uvicorn's HTTP/1.1 protocol, hardened so that it can face the network without a proxy.

llhttp refuses ambiguous framing. This class adds what llhttp and uvicorn lack: a bound on the time
and the size of a request's headers, a bound on the time that a slow reader may take, and refusals
in the error envelope, with a request id.
"""

import asyncio
from enum import Enum
from typing import Any

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
from tollkeeper.services.request_ids import new_request_id

_HEADERS_MAX = 100
# A response may be complete before the request's body was read. For this long the rest of the body
# is read and dropped: closing at once would reset the connection, and the caller would lose the
# response.
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
        # Bytes received since the last complete header block, piece of a body or end of a request.
        self._overhead_bytes = 0
        # The request that is being answered. With pipelining, `cycle` is the newest request, which
        # may still be waiting.
        self._current_cycle: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self.resume_writing()
        super().connection_lost(exc)
        cycle = self._current_cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            disconnect = cycle.scope["state"].get("disconnect")
            if disconnect is not None:
                disconnect.disconnected()

    def pause_writing(self) -> None:
        """The caller reads too slowly: it has `write_timeout_s` to catch up."""
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
        self._overhead_bytes += len(data)
        super().data_received(data)
        # The timer is started only for what did not arrive in one piece: incomplete headers, empty
        # lines that begin no request, chunk extensions and trailers.
        if self._overhead_bytes and self._phase is not _Phase.BODY and self._header_timer is None:
            self._start_header_timer()
        if self._overhead_bytes > self.header_bytes_max:
            self._refuse(HeadersTooLarge())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _Phase.HEADERS

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is _Phase.HEADERS:
            super().on_header(name, value)
        # Otherwise it is a trailer. Trailers are dropped: they come after the headers were checked.

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        self._phase = _Phase.BODY
        self._overhead_bytes = 0
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        if size > self.header_bytes_max or len(self.headers) > _HEADERS_MAX:
            self._refuse(HeadersTooLarge())
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Phase.IDLE
        self._overhead_bytes = 0
        if self.transport.is_closing():
            return
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        super().on_message_complete()
        if not self.pipeline:
            # A large body pauses the reading. The body is complete now, and reading must go on,
            # because only a read notices that the caller disconnects.
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        unread = self._phase is _Phase.BODY and not self.pipeline
        super().on_response_complete()
        if unread and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest("This is not a valid HTTP request."))

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self._phase is _Phase.HEADERS:
            self._refuse(BodyTimeout("The request's headers did not arrive in time."))
        elif self._phase is _Phase.IDLE and self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _refuse(self, error: TollkeeperError) -> None:
        """Sends an error and closes. The application is not called, because there is no request."""
        if self.transport.is_closing():
            return
        rendered = render_error(error, str(new_request_id()))
        head = [STATUS_LINE[rendered.status]]
        for name, value in rendered.headers:
            head += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", rendered.body]))
        self.transport.close()


def hardened_protocol(
    header_timeout_s: float, header_bytes_max: int, write_timeout_s: float
) -> type[HardenedProtocol]:
    """The protocol class with its limits bound. The server makes one object per connection."""
    limits = {
        "header_timeout_s": header_timeout_s,
        "header_bytes_max": header_bytes_max,
        "write_timeout_s": write_timeout_s,
    }
    return type("BoundProtocol", (HardenedProtocol,), limits)
