"""The application: finds the endpoint of a request, calls its handler, sends the answer or an error
envelope."""

from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from tollkeeper.api.http import request as incoming
from tollkeeper.api.http.bodies_in_flight import BodiesInFlight, BodyShare
from tollkeeper.api.http.conventions import HttpConventions
from tollkeeper.api.http.endpoint import (
    AnyEndpoint,
    Reply,
    Request,
    Streamed,
    StreamedAnswer,
)
from tollkeeper.api.http.envelope import (
    REQUEST_ID,
    ErrorStyle,
    MethodNotAllowed,
    WebSocketRefused,
    render_error,
    request_id_headers,
)
from tollkeeper.api.http.exchange import SERVER_WIDE, ClientGone, Exchange
from tollkeeper.api.http.head import HeadReading, RequestHead
from tollkeeper.api.http.metrics import request_ended, request_opened
from tollkeeper.api.http.overload_refusal import OverloadRefusal
from tollkeeper.api.http.router import Router
from tollkeeper.api.http.sse import EventStream, KeepAlive
from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, require
from tollkeeper.domain.audit import Actor, ActorKind
from tollkeeper.domain.errors import PermissionDenied, Unavailable
from tollkeeper.services.audit import act_as
from tollkeeper.services.request_ids import new_request_id_text
from tollkeeper.services.request_log import RequestLog
from tollkeeper.services.use_cases import Services

_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger("tollkeeper.api")

# The request by which Claude Code finds out whether it reaches its server.
_CLIENT_PROBE = ("HEAD", b"/")
# Every wish for a WebSocket has it.
_WEBSOCKET = b"sec-websocket-version"
# How many errors that have caused each other are looked at.
_CAUSES_MAX = 16


class App:
    """The public API over the services."""

    def __init__(
        self,
        services: Services,
        conventions: HttpConventions,
        endpoints: Sequence[AnyEndpoint],
    ) -> None:
        self._services = services
        self._conventions = conventions
        self._router = Router(endpoints)
        self._decoders = {
            endpoint.operation: msgspec.json.Decoder(endpoint.body) for endpoint in endpoints
        }
        self._decoding = incoming.JsonDecoding(conventions.body_elements_max)
        self._bodies = BodiesInFlight(
            bytes_max=conventions.bodies_bytes_max,
            key_bytes_max=conventions.bodies_bytes_max // 2,
        )
        self._keep_alive = KeepAlive()
        self._customer_key_header = conventions.customer_key_header.encode()
        self.refuses_at_once = OverloadRefusal(services, self._router, self._customer_key_header)

    async def __call__(self, exchange: Exchange) -> None:
        answer, head = _OpenAnswer(exchange), exchange.head
        exchange.on_stop(answer.stop)
        try:
            if head.path == SERVER_WIDE:
                answer.send_empty(204, (b"allow", self._router.methods.encode()))
                return
            if self._conventions.messages and (head.method, head.path) == _CLIENT_PROBE:
                answer.send_empty(200, (b"content-length", b"0"))
                return
            reading = head.reading or self._find(head)
            answer.found(reading.endpoint)
            request = await self._request(answer, reading)
            result = await reading.endpoint.handle(self._services, request)
            if isinstance(result, Streamed):
                with self._keep_alive.watching(answer.stream(result.answer)) as stream:
                    await result.answer.run(stream)
            else:
                answer.send(result if isinstance(result, Reply) else Reply(result))
        except ClientGone:
            return
        except Exception as exc:  # noqa: BLE001 - every other exception becomes an error envelope
            await answer.fail(exc)
            _forget_frames(exc)
        finally:
            if answer.body_share is not None:
                answer.body_share.release()
            answer.ended(self._services.request_log)

    def _find(self, head: RequestHead) -> HeadReading:
        try:
            return HeadReading(*self._router.find(head.method, head.path))
        except MethodNotAllowed:
            if _WEBSOCKET in head.headers:
                # Clients that try a WebSocket first then send a request at once.
                raise WebSocketRefused from None
            raise

    async def _request(self, answer: "_OpenAnswer", reading: HeadReading) -> Request[Any, Any]:
        exchange, endpoint = answer.exchange, reading.endpoint
        head = exchange.head
        if head.reading is None:
            incoming.read_key(head, reading, self._customer_key_header)
        caller: Caller
        if endpoint.admitted:
            caller = await self._services.authentication.recognise(reading.key)
        else:
            if endpoint.key_kind is KeyKind.ADMIN:
                self._services.administration_rate.require_room(reading.key)
            caller = await self._services.authentication.authenticate(reading.key)
        owner = exchange.owner = caller.organization_id.int
        _check_caller(endpoint, caller)
        if head.reading is None:
            incoming.check_rest(head, reading)
        # Before its body is read: who is beyond its rate, or comes on top of what this process can do,
        # shall not make us read or understand.
        if isinstance(caller, AdminCaller):
            self._services.administration_rate.take(caller.organization_id, reading.key)
        elif endpoint.rated:
            self._services.inference.overload.require_room(owner)
            self._services.inference.require_rate(caller.project_id)
        limits = self._conventions
        share = answer.body_share = self._bodies.share_of(caller)
        raw_body = await incoming.read_body(
            exchange, share, bytes_max=limits.body_bytes_max, timeout_s=limits.body_timeout_s
        )
        if endpoint.stored and isinstance(caller, AdminCaller):
            self._services.administration_rate.count_body(caller.organization_id, len(raw_body))
        decoder = self._decoders[endpoint.operation]
        body, large = await incoming.decode_body(
            endpoint, decoder, raw_body, self._decoding, share, owner=owner
        )
        incoming.grow_for_parts(share, body, raw_body, is_large=large)
        query = incoming.decode_query(head.query, endpoint.query)
        return Request(
            answer.request_id,
            caller,
            reading.path,
            query,
            body,
            raw_body,
            large,
            head.headers,
            exchange.on_leave,
            endpoint.operation,
            self._conventions,
        )


def _check_caller(endpoint: AnyEndpoint, caller: Caller) -> None:
    """Raises PermissionDenied where the caller's key is not for this endpoint."""
    kind = KeyKind.ADMIN if isinstance(caller, AdminCaller) else KeyKind.PROJECT
    if kind is not endpoint.key_kind:
        raise PermissionDenied(f"This route takes {_KEY_NAMES[endpoint.key_kind]} only.")
    require(caller, endpoint.permission)
    if kind is KeyKind.ADMIN:
        act_as(Actor(ActorKind.API, f"admin key {caller.key_id}"))


_KEY_NAMES = {
    KeyKind.ADMIN: "an organization's Admin API key",
    KeyKind.PROJECT: "a project's API key",
}


class _OpenAnswer:
    """The answer to one request as far as it is known, so that a failure or the end of the server
    can be told to the caller at any moment."""

    # What is so at first.
    body_share: BodyShare | None = None
    _style = ErrorStyle.USUAL
    _stream: EventStream | None = None
    _streamed: StreamedAnswer | None = None
    _operation = "none"
    # Stays if the caller leaves before there is a status.
    _status = 499

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.request_id = new_request_id_text()
        self._started = request_opened()

    def ended(self, log: RequestLog) -> None:
        """The request has its answer, or nobody waits for it any more."""
        request_ended(log, self.request_id, self._operation, self._status, self._started)

    def found(self, endpoint: AnyEndpoint) -> None:
        self._operation = endpoint.operation
        self._style = endpoint.error_style

    def stream(self, streamed: StreamedAnswer) -> EventStream:
        self._status = 200
        self._streamed = streamed
        self._stream = EventStream(self.exchange, self.request_id, self._style)
        return self._stream

    def send(self, reply: Reply) -> None:
        self._status = reply.status
        content = _encode(reply.result)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            *request_id_headers(self.request_id, self._style),
            *reply.headers,
        ]
        self.exchange.answer(reply.status, headers, content)

    def send_empty(self, status: int, header: tuple[bytes, bytes]) -> None:
        self._status = status
        self.exchange.answer(status, [header, (REQUEST_ID, self.request_id.encode())], b"")

    async def fail(self, error: Exception) -> None:
        """Sends an error envelope or, in a stream that has started, an error as the last record."""
        if self._streamed is None or self._stream is None or not self._stream.started:
            self._refuse(error)
            return
        try:
            await self._stream.end(self._streamed.failure(error))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the stream has no last record
            self._abandon(exc)

    def stop(self) -> None:
        """The server stops and does not wait for this answer any longer."""
        error = Unavailable("The gateway is shutting down.", retry_after_s=1)
        if self._streamed is None or self._stream is None or not self._stream.started:
            self._refuse(error)
            return
        try:
            self._stream.cut(self._streamed.failure(error))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the stream has no last record
            self._abandon(exc)

    def _refuse(self, error: Exception) -> None:
        style = error.style if isinstance(error, MethodNotAllowed) else self._style
        rendered = render_error(error, self.request_id, style)
        self._status = rendered.status
        self.exchange.answer(rendered.status, rendered.headers, rendered.body)

    def _abandon(self, error: Exception) -> None:
        """The stream has no last record, so the end of the connection has to tell the caller."""
        _log.error("a stream could not be ended", request_id=self.request_id, exc_info=error)
        self.exchange.abandon()


def _forget_frames(error: BaseException) -> None:
    """Frees what the frames of an error that was answered refer to, such as the body of its request.
    Some objects keep the error that they have raised, and with its frames they would be in a circle,
    which stays in memory until a garbage collection."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
