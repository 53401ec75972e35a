"""Finds the endpoint of a request, calls its handler, and sends the answer or an error envelope."""

from collections.abc import Sequence
from types import NoneType
from typing import Any

import msgspec
import structlog

from tollkeeper.api.http import request as incoming
from tollkeeper.api.http.conventions import HttpConventions
from tollkeeper.api.http.endpoint import (
    AnyEndpoint,
    HeadReading,
    Reply,
    Request,
    Streamed,
    StreamedAnswer,
)
from tollkeeper.api.http.envelope import (
    ErrorStyle,
    MethodNotAllowed,
    WebSocketRefused,
    json_headers,
    render_error,
    request_id_headers,
)
from tollkeeper.api.http.exchange import SERVER_WIDE, ClientGone, Exchange, RequestHead, Work
from tollkeeper.api.http.metrics import request_ended, request_opened
from tollkeeper.api.http.request_memory import BodiesInFlight, BodyShare
from tollkeeper.api.http.router import Router
from tollkeeper.api.http.sse import EventStream, KeepAlive
from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, require
from tollkeeper.domain.audit import Actor, ActorKind
from tollkeeper.domain.errors import PermissionDenied, Unavailable
from tollkeeper.domain.keys import key_digest
from tollkeeper.services.audit import act_as
from tollkeeper.services.request_ids import new_request_id_text
from tollkeeper.services.request_log import RequestLog
from tollkeeper.services.use_cases import Services

_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger("tollkeeper.api")

# The request by which Claude Code finds out whether it reaches its server.
_CLIENT_PROBE = ("HEAD", b"/")
# Every WebSocket request has this header.
_WEBSOCKET = b"sec-websocket-version"
# The maximum length of a chain of causes that is followed.
_CAUSES_MAX = 16


class App:
    """Serves the public API with the services."""

    def __init__(
        self,
        services: Services,
        conventions: HttpConventions,
        endpoints: Sequence[AnyEndpoint],
    ) -> None:
        self._services = services
        self._authentication = services.authentication
        self._overload = services.inference.overload
        self._conventions = conventions
        self._router = Router(endpoints)
        self._decoders = {
            endpoint.operation: msgspec.json.Decoder(endpoint.body) for endpoint in endpoints
        }
        self._bodies = BodiesInFlight(
            bytes_max=conventions.bodies_bytes_max,
            key_bytes_max=conventions.bodies_bytes_max // 2,
        )
        self._keep_alive = KeepAlive()
        self._customer_key_header = conventions.customer_key_header.encode()

    def __call__(self, exchange: Exchange) -> Work | None:
        """Does everything that needs no wait: reads the headers, finds the caller of a cached key,
        and rejects. An overloaded process rejects most requests here, so it starts no task for
        them."""
        answer, head = _OpenAnswer(exchange, self._services.request_log), exchange.head
        caller = None
        try:
            reading = head.reading
            if reading is None:
                if self._answers_probe(answer, head):
                    answer.ended()
                    return None
                reading = self._read(answer, head)
            answer.reading = reading
            if reading.endpoint.admitted:
                caller, is_fresh = self._authentication.cached(reading.digest)
                if caller is not None and (is_fresh or self._overload.is_full):
                    self._admit(exchange, reading, caller)
                if not is_fresh:
                    # The cached entry was only fresh enough to reject the call.
                    caller = None
        except Exception as exc:  # noqa: BLE001 - every exception becomes an error envelope
            answer.refuse(exc)
            answer.ended()
            _forget_frames(exc)
            return None
        exchange.on_stop(answer.stop)
        return self._answer(answer, reading, caller)

    async def _answer(
        self, answer: "_OpenAnswer", reading: HeadReading, caller: Caller | None
    ) -> None:
        exchange, endpoint, services = answer.exchange, reading.endpoint, self._services
        try:
            if caller is None:
                caller = await self._authenticate(exchange, reading)
            share = answer.body_share = BodyShare(reading.account)
            raw_body = exchange.body
            if raw_body is None or len(raw_body) > self._conventions.body_bytes_max:
                raw_body = await incoming.read_body(exchange, share, self._conventions)
            if endpoint.stored and isinstance(caller, AdminCaller):
                services.administration_rate.count_body(caller.organization_id, len(raw_body))
            elements_max = self._conventions.body_elements_max
            body, is_large = await incoming.decode_body(
                reading, raw_body, share, elements_max, exchange.owner
            )
            if endpoint.query is not NoneType:
                reading.query = incoming.decode_query(exchange.head.query, endpoint.query)
            request: Request[Any, Any] = Request(
                answer.request_id,
                caller,
                reading,
                body,
                raw_body,
                is_large,
                exchange.on_leave,
                self._conventions,
            )
            result = await endpoint.handle(services, request)
            if isinstance(result, Streamed):
                with self._keep_alive.watching(answer.stream(result.answer)) as stream:
                    await result.answer.run(stream)
            else:
                answer.send(result)
        except ClientGone:
            return
        except Exception as exc:  # noqa: BLE001 - every other exception becomes an error envelope
            await answer.fail(exc)
            _forget_frames(exc)
        finally:
            answer.ended()

    def _answers_probe(self, answer: "_OpenAnswer", head: RequestHead) -> bool:
        """Answers a request that needs no endpoint, and returns whether it is one."""
        if head.path == SERVER_WIDE:
            answer.send_empty(204, b"allow: %b\r\n" % self._router.methods.encode())
        elif self._conventions.messages and (head.method, head.path) == _CLIENT_PROBE:
            answer.send_empty(200, b"content-length: 0\r\n")
        else:
            return False
        return True

    def _read(self, answer: "_OpenAnswer", head: RequestHead) -> HeadReading:
        """Finds the endpoint and the key. Not repeated for repeated headers."""
        try:
            endpoint, path = self._router.find(head.method, head.path)
        except MethodNotAllowed:
            if _WEBSOCKET in head.headers:
                # Clients that try a WebSocket first then send a normal request at once.
                raise WebSocketRefused from None
            raise
        decoder = self._decoders[endpoint.operation] if endpoint.takes_body else None
        reading = answer.reading = HeadReading(endpoint, decoder, path, head.headers)
        reading.key = incoming.presented_key(
            head.headers, endpoint.key_kind, self._customer_key_header
        )
        reading.digest = key_digest(reading.key)
        head.reading = reading
        return reading

    async def _authenticate(self, exchange: Exchange, reading: HeadReading) -> Caller:
        """Asks the database for the caller of a key that is not cached."""
        caller: Caller
        if reading.endpoint.admitted:
            caller = await self._authentication.recognise(reading.key)
        else:
            if reading.endpoint.key_kind is KeyKind.ADMIN:
                self._services.administration_rate.require_room(reading.key)
            caller = await self._authentication.authenticate(reading.key)
        self._admit(exchange, reading, caller)
        return caller

    def _admit(self, exchange: Exchange, reading: HeadReading, caller: Caller) -> None:
        """Checks everything that depends on headers and caller, before the body is read: a caller
        beyond its rate, or beyond this process's capacity, must not cause the work of reading and
        parsing."""
        endpoint = reading.endpoint
        owner = caller.organization_id.int
        exchange.recognise(owner)
        if reading.caller is not caller:
            _check_caller(endpoint, caller)
            incoming.check_headers(reading, self._conventions)
            reading.account = self._bodies.account_of(caller)
            reading.caller = caller
        if isinstance(caller, AdminCaller):
            act_as(Actor(ActorKind.API, f"admin key {caller.key_id}"))
            self._services.administration_rate.take(caller.organization_id, reading.key)
        elif endpoint.rated:
            self._overload.require_room(owner)
            self._services.inference.require_rate(caller.project_id)


def _check_caller(endpoint: AnyEndpoint, caller: Caller) -> None:
    """Raises PermissionDenied if the caller's key is not for this endpoint."""
    kind = KeyKind.ADMIN if isinstance(caller, AdminCaller) else KeyKind.PROJECT
    if kind is not endpoint.key_kind:
        raise PermissionDenied(f"This route accepts only {_KEY_NAMES[endpoint.key_kind]}.")
    require(caller, endpoint.permission)


_KEY_NAMES = {
    KeyKind.ADMIN: "an organization's Admin API key",
    KeyKind.PROJECT: "a project's API key",
}


class _OpenAnswer:
    """Holds the known part of one answer, so that a failure or the end of the server can be
    reported to the client at any time."""

    # The initial values.
    reading: HeadReading | None = None
    body_share: BodyShare | None = None
    _stream: EventStream | None = None
    _streamed: StreamedAnswer | None = None
    # Stays if the client disconnects before there is a status.
    _status = 499

    def __init__(self, exchange: Exchange, log: RequestLog) -> None:
        self.exchange = exchange
        self.request_id = new_request_id_text()
        self._log = log
        self._started = request_opened()

    def ended(self) -> None:
        """Handles the end of a request: it has its answer, or the client has disconnected."""
        if self.body_share is not None:
            self.body_share.release()
        operation = "none" if self.reading is None else self.reading.endpoint.operation
        request_ended(self._log, self.request_id, operation, self._status, self._started)

    @property
    def _style(self) -> ErrorStyle:
        return ErrorStyle.USUAL if self.reading is None else self.reading.endpoint.error_style

    def stream(self, streamed: StreamedAnswer) -> EventStream:
        self._status = 200
        self._streamed = streamed
        self._stream = EventStream(self.exchange, self.request_id, self._style)
        return self._stream

    def send(self, result: msgspec.Struct | Reply) -> None:
        status, headers = 200, request_id_headers(self.request_id, self._style)
        if isinstance(result, Reply):
            status, headers, result = result.status, headers + result.headers, result.result
        self._status = status
        content = _encode(result)
        self.exchange.answer(status, json_headers(content, headers), content)

    def send_empty(self, status: int, header: bytes) -> None:
        self._status = status
        headers = header + request_id_headers(self.request_id, ErrorStyle.USUAL)
        self.exchange.answer(status, headers, b"")

    async def fail(self, error: Exception) -> None:
        """Sends an error envelope or, in a stream that has started, an error as the last record."""
        if self._streamed is None or self._stream is None or not self._stream.started:
            self.refuse(error)
            return
        try:
            await self._stream.end(self._streamed.failure(error))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the stream has no last record
            self._abandon(exc)

    def stop(self) -> None:
        """Ends the answer because the server stops."""
        error = Unavailable("The gateway is shutting down.", retry_after_s=1)
        if self._streamed is None or self._stream is None or not self._stream.started:
            self.refuse(error)
            return
        try:
            self._stream.cut(self._streamed.failure(error))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the stream has no last record
            self._abandon(exc)

    def refuse(self, error: Exception) -> None:
        style = error.style if isinstance(error, MethodNotAllowed) else self._style
        rendered = render_error(error, self.request_id, style)
        self._status = rendered.status
        self.exchange.answer(rendered.status, rendered.headers, rendered.body)

    def _abandon(self, error: Exception) -> None:
        """Closes the connection, because the stream cannot have a last record."""
        _log.error("a stream could not be ended", request_id=self.request_id, exc_info=error)
        self.exchange.abandon()


def _forget_frames(error: BaseException) -> None:
    """Frees the objects in the frames of an answered error, such as the body of its request. Some
    objects keep the error that they have raised, and with its frames they would form a cycle, which
    stays in memory until a garbage collection."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
