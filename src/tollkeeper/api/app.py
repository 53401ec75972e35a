"""The ASGI application: finds the endpoint of a request, calls its handler, sends the answer or an
error envelope."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec

from tollkeeper.api.http import request as incoming
from tollkeeper.api.http.conventions import HttpConventions
from tollkeeper.api.http.disconnect import Disconnect
from tollkeeper.api.http.endpoint import (
    AnyEndpoint,
    HeaderIndex,
    Reply,
    Request,
    Streamed,
    StreamedAnswer,
)
from tollkeeper.api.http.envelope import REQUEST_ID, RenderedError, render_error
from tollkeeper.api.http.metrics import Observation
from tollkeeper.api.http.request import ClientGone, Receive, Scope
from tollkeeper.api.http.router import Router
from tollkeeper.api.http.sse import EventStream, KeepAlive, Send
from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, require
from tollkeeper.domain.audit import Actor, ActorKind
from tollkeeper.domain.errors import PermissionDenied, Unavailable
from tollkeeper.services.audit import act_as
from tollkeeper.services.use_cases import Services

_encode = msgspec.json.Encoder().encode


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
        self._keep_alive = KeepAlive()
        self._customer_key_header = conventions.customer_key_header.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server serves HTTP only"
        with Observation(self._services.request_log) as observation:
            await self._answer(observation, scope, receive, send)

    async def _answer(
        self, observation: Observation, scope: Scope, receive: Receive, send: Send
    ) -> None:
        request_id = observation.request_id = str(uuid4())
        messages_style = False
        stream: EventStream | None = None
        try:
            headers = incoming.header_index(scope["headers"])
            incoming.check_host(headers, scope["http_version"])
            endpoint, path = self._router.find(scope["method"], scope["raw_path"])
            observation.operation = endpoint.operation
            messages_style = endpoint.messages_style
            request = await self._request(request_id, endpoint, path, headers, scope, receive)
            result = await endpoint.handle(self._services, request)
            if isinstance(result, Streamed):
                stream = EventStream(send, request_id)
                await self._stream(stream, result.answer)
                observation.status = 200
                return
        except ClientGone:
            return
        except asyncio.CancelledError:
            # The server shuts down and cancels requests that did not end within the grace period.
            if _has_started(stream):
                observation.status = 200
                raise
            error = render_error(_shutting_down(), request_id, messages_style=messages_style)
            observation.status = error.status
            await _send_error(send, error)
            raise
        except Exception as exc:
            # This is the outermost handler: every other exception becomes an error envelope.
            if _has_started(stream):
                observation.status = 200
                raise  # The stream could not be ended, so the server closes the connection.
            error = render_error(exc, request_id, messages_style=messages_style)
            observation.status = error.status
            await _send_error(send, error)
            return
        reply = result if isinstance(result, Reply) else Reply(result)
        observation.status = reply.status
        await _send_reply(send, request_id, reply)

    async def _stream(self, stream: EventStream, answer: StreamedAnswer) -> None:
        """Runs a streamed answer. A failure before the first record is raised and becomes an error
        envelope; a later failure is written as the last record. Raises after the start only if the
        stream could not be ended or the request was cancelled."""
        with self._keep_alive.watching(stream):
            try:
                await answer.run(stream)
            except asyncio.CancelledError:
                if stream.started:
                    await stream.cut(answer.failure(_shutting_down()))
                raise
            except Exception as exc:
                if not stream.started:
                    raise
                await stream.end(answer.failure(exc))

    async def _request(
        self,
        request_id: str,
        endpoint: AnyEndpoint,
        path: dict[str, str],
        headers: HeaderIndex,
        scope: Scope,
        receive: Receive,
    ) -> Request[Any, Any]:
        caller = await self._caller(endpoint, headers)
        incoming.check_path_ids(path)
        if endpoint.takes_body:
            incoming.check_content_type(headers)
        limits = self._conventions
        raw_body = await incoming.read_body(
            receive, headers, bytes_max=limits.body_bytes_max, timeout_s=limits.body_timeout_s
        )
        body = incoming.decode_body(endpoint, self._decoders[endpoint.operation], raw_body)
        query = incoming.decode_query(scope["query_string"], endpoint.query)
        disconnect = Disconnect()
        scope["state"]["disconnect"] = disconnect
        return Request(
            request_id,
            caller,
            path,
            query,
            body,
            raw_body,
            headers,
            disconnect.register,
            endpoint.operation,
            self._conventions,
        )

    async def _caller(self, endpoint: AnyEndpoint, headers: HeaderIndex) -> Caller:
        presented = incoming.presented_key(headers, endpoint.key_kind, self._customer_key_header)
        authentication = self._services.authentication
        if endpoint.admitted:
            caller = await authentication.recognise(presented)
        else:
            caller = await authentication.authenticate(presented)
        kind = KeyKind.ADMIN if isinstance(caller, AdminCaller) else KeyKind.PROJECT
        if kind is not endpoint.key_kind:
            raise PermissionDenied(f"This route takes {_KEY_NAMES[endpoint.key_kind]} only.")
        require(caller, endpoint.permission)
        if kind is KeyKind.ADMIN:
            act_as(Actor(ActorKind.API, f"admin key {caller.key_id}"))
        return caller


_KEY_NAMES = {
    KeyKind.ADMIN: "an organization's Admin API key",
    KeyKind.PROJECT: "a project's API key",
}


def _has_started(stream: EventStream | None) -> bool:
    """Whether the status and the headers were sent, so that no error envelope can follow."""
    return stream is not None and stream.started


def _shutting_down() -> Unavailable:
    return Unavailable("The gateway is shutting down.", retry_after_s=1)


async def _send_reply(send: Send, request_id: str, reply: Reply) -> None:
    content = _encode(reply.result)
    await send(
        {
            "type": "http.response.start",
            "status": reply.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                (REQUEST_ID, request_id.encode()),
                *reply.headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": content})


async def _send_error(send: Send, error: RenderedError) -> None:
    await send({"type": "http.response.start", "status": error.status, "headers": error.headers})
    await send({"type": "http.response.body", "body": error.body})
