"""Finds the endpoint of a request, calls its handler, and sends the answer or an error."""

from collections.abc import Sequence
from time import monotonic, time_ns
from types import NoneType
from typing import Any

import msgspec
import structlog

from tollkeeper.calls.tab import SettlementState
from tollkeeper.core.access import AdminCaller, Caller, KeyKind, require
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.core.errors import PermissionDenied, TollkeeperError, Unavailable
from tollkeeper.core.runtime.request_ids import new_request_id_text
from tollkeeper.faces import request as incoming
from tollkeeper.faces.endpoint import (
    AnyEndpoint,
    HeaderContext,
    Request,
    Streamed,
    StreamedResponse,
)
from tollkeeper.faces.router import Router
from tollkeeper.faces.strict_json import decode_body
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.http.conventions import HttpConventions
from tollkeeper.http.envelope import (
    ANSWER_HEADERS,
    ErrorStyle,
    MethodNotAllowed,
    WebSocketRefused,
    render_error,
    request_id_headers,
)
from tollkeeper.http.exchange import SERVER_WIDE, ClientDisconnected, Exchange, Work
from tollkeeper.http.request_memory import RequestMemory, RequestShare
from tollkeeper.http.sse import EventStream, KeepAlive
from tollkeeper.tenants.audit.rule import Actor, ActorKind
from tollkeeper.tenants.audit.service import act_as
from tollkeeper.tenants.keys import key_digest

_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger("tollkeeper.faces")

# How Claude Code checks that it can reach its server.
_CLIENT_PROBE = ("HEAD", b"/")
_WEBSOCKET = b"sec-websocket-version"
# The operation in metrics and the log of a request without an endpoint.
_NO_OPERATION = "none"
_CAUSES_MAX = 16


class App:
    """The server calls it once for each request."""

    def __init__(
        self,
        services: ApiServices,
        conventions: HttpConventions,
        endpoints: Sequence[AnyEndpoint],
    ) -> None:
        self._services = services
        self._authentication = services.authentication
        self._overload = services.inference.overload
        self._refusals = services.inference.standing_refusals
        self._log = services.request_log
        self._conventions = conventions
        self._router = Router(endpoints)
        self._decoders = {
            endpoint.operation: msgspec.json.Decoder(endpoint.body) for endpoint in endpoints
        }
        self._request_memory = RequestMemory(conventions.requests_bytes_max)
        self._keep_alive = KeepAlive()
        self._customer_key_header = conventions.customer_key_header.encode()
        # For errors that the server sends without calling this object.
        self.error_style = self._router.error_style

    def __call__(self, exchange: Exchange) -> Work | None:
        """Does everything that needs no waiting, and returns the rest of the work. An overloaded
        process rejects most requests here, without starting a task for each."""
        request = _OpenRequest(exchange, self._log.request_opened())
        try:
            context = exchange.head.context
            if context is not None:
                request.context, request.operation = context, context.endpoint.operation
            elif self._answer_without_endpoint(request):
                self._log.request_ended(request)
                return None
            else:
                context = self._find_endpoint(request)
            key = context.cached_key
            if key is not None and request.opened_at < key.checked_until:
                exchange.recognise(key.caller.organization_id.int)
                request.project_caller = key.caller
                self._require_room(request)
                request.is_accepted = self._standing_refusal(request) is None
            elif context.endpoint.admitted:
                self._look_up_cached_key(request)
        except Exception as exc:  # noqa: BLE001 - every exception becomes an error envelope
            if request.operation == _NO_OPERATION:
                request.style = self.error_style(exchange.head.path)
            request.send_error(exc)
            self._record_refusal(request, exc)
            self._log.request_ended(request)
            _forget_frames(exc)
            return None
        exchange.on_stop = request.stop
        return self._answer(request)

    async def _answer(self, request: "_OpenRequest") -> None:
        """Does the work that may wait, and releases the body's memory at the end."""
        exchange = request.exchange
        context = request.context
        conventions = self._conventions
        endpoint = context.endpoint
        share = None
        try:
            if not request.is_accepted:
                self._accept(request, await self._authenticate(context))
                self._require_no_refusal(request)
            share = RequestShare(context.memory)
            raw_body = exchange.body
            # `read_body` also rejects a complete body that's too large.
            if raw_body is None or len(raw_body) > conventions.body_bytes_max:
                raw_body = await incoming.read_body(exchange, share, conventions)
            if endpoint.stored:
                organization_id = request.admin_caller.organization_id
                self._services.administration_rate.count_body(organization_id, len(raw_body))
            request.raw_body = raw_body
            request.body = await decode_body(
                request, share, conventions.body_elements_max, exchange.owner
            )
            if endpoint.query is not NoneType:
                context.query = incoming.decode_query(exchange.head.query, endpoint.query)
            result = await endpoint.handle(self._services, request)
            if type(result) is Streamed:
                with self._keep_alive.watching(request.open_stream(result.answer)) as stream:
                    await result.answer.run(stream)
            else:
                request.send(result)
        except ClientDisconnected:
            return
        except Exception as exc:  # noqa: BLE001 - every other exception becomes an error envelope
            await request.fail(exc)
            self._record_refusal(request, exc)
            _forget_frames(exc)
        finally:
            if share is not None:
                share.release()
            # A streamed answer refers to its request.
            request.streamed = None
            self._log.request_ended(request)

    def _answer_without_endpoint(self, request: "_OpenRequest") -> bool:
        """`OPTIONS *` and Claude Code's probe. False for any other request."""
        head = request.exchange.head
        if head.path == SERVER_WIDE:
            request.send_empty(204, b"allow: %b\r\n" % self._router.methods.encode())
        elif self._conventions.messages and (head.method, head.path) == _CLIENT_PROBE:
            request.send_empty(200, b"content-length: 0\r\n")
        else:
            return False
        return True

    def _find_endpoint(self, request: "_OpenRequest") -> HeaderContext:
        """Also puts its result into `head`, which later requests with the same headers reuse."""
        head = request.exchange.head
        try:
            endpoint, path = self._router.find(head.method, head.path)
        except MethodNotAllowed:
            if _WEBSOCKET in head.headers:
                # Some clients try a WebSocket first. This error makes them POST at once.
                raise WebSocketRefused from None
            raise
        decoder = self._decoders[endpoint.operation] if endpoint.takes_body else None
        context = HeaderContext(
            endpoint,
            decoder,
            path,
            head.headers,
            self._conventions.cost_header,
            ANSWER_HEADERS[endpoint.error_style],
        )
        request.context, request.operation = context, endpoint.operation
        context.key = incoming.presented_key(
            head.headers, endpoint.key_kind, self._customer_key_header
        )
        context.digest = key_digest(context.key)
        head.context = context
        return context

    def _look_up_cached_key(self, request: "_OpenRequest") -> None:
        context = request.context
        key = self._authentication.cached(context.digest)
        # An overloaded process rejects calls by expired entries too, but never serves them.
        if key is not None and (key.is_fresh or self._overload.is_full):
            self._accept(request, key.caller)
            if key.is_fresh:
                context.cached_key = key
                request.is_accepted = self._standing_refusal(request) is None

    async def _authenticate(self, context: HeaderContext) -> Caller:
        self._services.administration_rate.require_room(context.key)
        if context.endpoint.admitted:
            return await self._authentication.authenticate_and_cache(context.key)
        return await self._authentication.authenticate(context.key)

    def _accept(self, request: "_OpenRequest", caller: Caller) -> None:
        """Checks what only depends on the headers and the caller, before the body is read or
        parsed. Even rejected requests count towards the administration rate, because
        authentication has read the database for them."""
        context = request.context
        request.exchange.recognise(caller.organization_id.int)
        if isinstance(caller, AdminCaller):
            self._services.administration_rate.take(caller.organization_id, context.key)
        if not isinstance(caller, AdminCaller):
            # Before the checks, so that their refusals are recorded.
            request.project_caller = caller
        if context.caller is not caller:
            _check_caller(context.endpoint, caller)
            incoming.check_headers(context, self._conventions)
            context.memory = self._request_memory.organization_memory(caller.organization_id)
            context.caller = caller
        if isinstance(caller, AdminCaller):
            request.admin_caller = caller
            act_as(Actor(ActorKind.API, f"admin key {caller.key_id}"))
        else:
            self._require_room(request)

    def _record_refusal(self, request: "_OpenRequest", error: Exception) -> None:
        """For an inference request of a known key that never became a call."""
        caller = request.project_caller
        if caller is None or request.is_call or not request.context.endpoint.admitted:
            return
        status, code, param, message = request.error_values(error)
        body = request.body
        model = getattr(body, "model", "")
        duration_us = int((monotonic() - request.opened_at) * 1e6)
        # From now on the recorder writes the request's log line.
        request.is_call = True
        self._services.recorder.refused(
            ActivityRecord(
                request_id=request.id,
                organization_id=caller.organization_id,
                project_id=caller.project_id,
                key_id=caller.key_id,
                operation=request.operation,
                # Only the catalogue's, because roll-ups have rows for each model.
                model=model if model in self._services.catalog.catalog else "",
                streamed=getattr(body, "stream", None) is True,
                started_at_ms=time_ns() // 1_000_000 - duration_us // 1000,
                duration_us=duration_us,
                first_piece_us=None,
                status=status,
                error_code=code,
                finish=None,
                estimated=False,
                hold_picousd=None,
                cost_picousd=None,
                settlement=SettlementState.NONE,
                backend=None,
                replica=None,
                error_param=param,
                error_message=message,
            )
        )

    def _require_room(self, request: "_OpenRequest") -> None:
        if request.context.endpoint.rated and self._overload.watches_arrivals:
            self._overload.require_room(request.project_caller.organization_id.int)

    def _require_no_refusal(self, request: "_OpenRequest") -> None:
        refusal = self._standing_refusal(request)
        if refusal is not None:
            raise refusal

    def _standing_refusal(self, request: "_OpenRequest") -> TollkeeperError | None:
        """From what this process remembers. A cached key isn't accepted then, so authentication
        reads it again: a key revoked meanwhile gets 401 rather than 429."""
        if request.context.endpoint.rated and request.opened_at < self._refusals.until:
            return self._refusals.find(request.project_caller.project_id)
        return None


def _check_caller(endpoint: AnyEndpoint, caller: Caller) -> None:
    kind = KeyKind.ADMIN if isinstance(caller, AdminCaller) else KeyKind.PROJECT
    if kind is not endpoint.key_kind:
        raise PermissionDenied(f"This route accepts only {_KEY_NAMES[endpoint.key_kind]}.")
    require(caller, endpoint.permission)


_KEY_NAMES = {
    KeyKind.ADMIN: "an organization's Admin API key",
    KeyKind.PROJECT: "a project's API key",
}


class _OpenRequest(Request[Any, Any]):
    """With the state of its answer, so a failure or a stop can reach the client at any time."""

    # Until the endpoint is known.
    operation = _NO_OPERATION
    style = ErrorStyle.USUAL
    is_accepted = False
    project_caller: Any = None
    body = None
    # If the client disconnects before an answer is sent.
    status = 499
    # Set by the request log.
    ended_at: float
    _stream: EventStream | None = None
    streamed: StreamedResponse | None = None

    def __init__(self, exchange: Exchange, opened_at: float) -> None:
        self.exchange = exchange
        self.id = new_request_id_text()
        self.opened_at = opened_at
        self.on_disconnect = exchange.on_disconnect

    @property
    def _style(self) -> ErrorStyle:
        if self.operation == _NO_OPERATION:
            return self.style
        return self.context.endpoint.error_style

    def open_stream(self, streamed: StreamedResponse) -> EventStream:
        self.status = 200
        self.streamed = streamed
        self._stream = EventStream(self.exchange, self.id, self._style)
        return self._stream

    def send(self, result: msgspec.Struct) -> None:
        self.status = 200
        content = _encode(result)
        headers = self.context.answer_headers % {b"length": len(content), b"id": self.id.encode()}
        self.exchange.answer(200, headers + self.further_headers, content)

    def send_empty(self, status: int, header: bytes) -> None:
        self.status = status
        headers = header + request_id_headers(self.id, ErrorStyle.USUAL)
        self.exchange.answer(status, headers, b"")

    async def fail(self, error: Exception) -> None:
        """Sends an error envelope, or the stream's last record if the stream has started."""
        if self.streamed is None or self._stream is None or not self._stream.started:
            self.send_error(error)
            return
        try:
            await self._stream.end(self.streamed.failure(error))
        except Exception as exc:  # noqa: BLE001 - after any exception, the last record is missing
            self._abandon(exc)

    def stop(self) -> None:
        error = Unavailable("The gateway is shutting down.", retry_after_s=1)
        if self.streamed is None or self._stream is None or not self._stream.started:
            self.send_error(error)
            return
        try:
            self._stream.cut(self.streamed.failure(error))
        except Exception as exc:  # noqa: BLE001 - after any exception, the last record is missing
            self._abandon(exc)

    def send_error(self, error: Exception) -> None:
        rendered = render_error(error, self.id, self._style)
        self.status = rendered.status
        self.exchange.answer(rendered.status, rendered.headers, rendered.body)

    def _abandon(self, error: Exception) -> None:
        _log.error("a stream could not be ended", request_id=self.id, exc_info=error)
        self.exchange.abandon()


def _forget_frames(error: BaseException) -> None:
    """Once the client has the error. A traceback's frames refer to large objects such as the body,
    and some of those keep the error they raised: a cycle that stays in memory until the next GC."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            break
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
