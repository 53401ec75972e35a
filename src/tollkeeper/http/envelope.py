"""Every error's HTTP status, type and code, and its JSON."""

from dataclasses import dataclass
from enum import Enum, auto

import msgspec
import structlog

from tollkeeper.core import errors
from tollkeeper.core.conventions import MESSAGES_REQUEST_ID_HEADER, REQUEST_ID_HEADER
from tollkeeper.http.wire_errors import (
    ErrorBody,
    ErrorEnvelope,
    MessagesErrorEnvelope,
    MessagesErrorEnvelopeWithId,
)

# The second is what Messages clients read.
_REQUEST_ID = f"{REQUEST_ID_HEADER.lower()}: %(id)b\r\n".encode()
_MESSAGES_REQUEST_ID = f"{MESSAGES_REQUEST_ID_HEADER}: %(id)b\r\n".encode()
_log = structlog.get_logger("tollkeeper.faces")
_encode = msgspec.json.Encoder().encode


class ErrorStyle(Enum):
    USUAL = auto()
    # POST /v1/messages/count_tokens.
    COUNTING = auto()
    # POST /v1/messages, whose clients only show the message, so it also names the invalid field.
    MESSAGES = auto()


_ID_HEADERS = {
    style: _REQUEST_ID if style is ErrorStyle.USUAL else _REQUEST_ID + _MESSAGES_REQUEST_ID
    for style in ErrorStyle
}
# `length` is in bytes.
ANSWER_HEADERS = {
    style: b"content-type: application/json\r\ncontent-length: %(length)d\r\n" + id_headers
    for style, id_headers in _ID_HEADERS.items()
}


class PayloadTooLarge(errors.TollkeeperError):
    """The body exceeds the size limit."""


class HeadersTooLarge(errors.TollkeeperError):
    """The request's headers exceed the size limit."""


class UnsupportedMediaType(errors.TollkeeperError):
    """The body must be application/json."""


class MethodNotAllowed(errors.TollkeeperError):
    """This path does not take this method."""

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This path accepts only {allowed}.")
        self.allowed = allowed


class WebSocketRefused(errors.TollkeeperError):
    """WebSockets are not supported: send a POST request."""


class BodyTimeout(errors.TollkeeperError):
    """The body did not arrive in time."""


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    status: int
    type: str
    code: str


# A class without an entry gets its nearest base class's, so a new subclass of NotFound is a 404.
ERROR_TABLE: dict[type[Exception], ErrorEntry] = {
    errors.InvalidRequest: ErrorEntry(400, "invalid_request_error", "invalid_request"),
    errors.Unauthenticated: ErrorEntry(401, "authentication_error", "invalid_api_key"),
    errors.PaymentRequired: ErrorEntry(402, "billing_error", "payment_required"),
    errors.PermissionDenied: ErrorEntry(403, "permission_error", "permission_denied"),
    errors.PolicyDenied: ErrorEntry(403, "policy_error", "policy_denied"),
    errors.NotFound: ErrorEntry(404, "not_found_error", "not_found"),
    errors.ModelNotFound: ErrorEntry(404, "not_found_error", "model_not_found"),
    MethodNotAllowed: ErrorEntry(405, "invalid_request_error", "method_not_allowed"),
    WebSocketRefused: ErrorEntry(426, "invalid_request_error", "websocket_refused"),
    BodyTimeout: ErrorEntry(408, "timeout_error", "request_timeout"),
    errors.RevisionConflict: ErrorEntry(409, "conflict_error", "revision_conflict"),
    errors.StateConflict: ErrorEntry(409, "conflict_error", "state_conflict"),
    errors.IdempotencyConflict: ErrorEntry(409, "conflict_error", "idempotency_conflict"),
    PayloadTooLarge: ErrorEntry(413, "request_too_large", "payload_too_large"),
    UnsupportedMediaType: ErrorEntry(415, "invalid_request_error", "unsupported_media_type"),
    HeadersTooLarge: ErrorEntry(431, "request_too_large", "headers_too_large"),
    errors.ProviderRejected: ErrorEntry(422, "invalid_request_error", "unprocessable"),
    errors.RateLimited: ErrorEntry(429, "rate_limit_error", "rate_limit_exceeded"),
    Exception: ErrorEntry(500, "api_error", "server_error"),
    errors.OptionUnsupported: ErrorEntry(501, "api_error", "not_implemented"),
    errors.BackendFailed: ErrorEntry(502, "api_error", "provider_unavailable"),
    errors.Unavailable: ErrorEntry(503, "api_error", "service_unavailable"),
    errors.DeadlineExceeded: ErrorEntry(504, "timeout_error", "timeout"),
}

# Some SDKs retry even these, unless they get `x-should-retry: false`.
POINTLESS_TO_RETRY = frozenset({403, 409, 501})


def error_entry(error: BaseException) -> ErrorEntry:
    for error_type in type(error).__mro__:
        if error_type in ERROR_TABLE:
            return ERROR_TABLE[error_type]
    return ERROR_TABLE[Exception]


@dataclass(frozen=True, slots=True)
class RenderedError:
    status: int
    # Complete lines, each with CRLF at its end.
    headers: bytes
    body: bytes


def error_body(error: Exception, request_id: str) -> ErrorBody:
    """An unexpected exception is logged, and the client only gets the request id, because its text
    may have internal details."""
    entry = error_entry(error)
    if isinstance(error, errors.TollkeeperError):
        message, param = error.message, error.param
    else:
        _log.error("unexpected fault", request_id=request_id, exc_info=error)
        message, param = (
            f"The gateway failed unexpectedly. Quote the request id {request_id} in a report.",
            None,
        )
    return ErrorBody(
        code=entry.code,
        message=message,
        type=entry.type,
        param=param,
        request_id=request_id,
        doc_url=None,
    )


def error_envelope(error: Exception, request_id: str, style: ErrorStyle) -> msgspec.Struct:
    body = error_body(error, request_id)
    match style:
        case ErrorStyle.USUAL:
            return ErrorEnvelope(error=body)
        case ErrorStyle.COUNTING:
            return MessagesErrorEnvelope(type="error", error=body)
    if body.param is not None:
        body.message = f"{body.param}: {body.message}"
    return MessagesErrorEnvelopeWithId(type="error", error=body, request_id=request_id)


def request_id_headers(request_id: str, style: ErrorStyle) -> bytes:
    return _ID_HEADERS[style] % {b"id": request_id.encode()}


def render_error(
    error: Exception, request_id: str, style: ErrorStyle = ErrorStyle.USUAL
) -> RenderedError:
    status = error_entry(error).status
    content = _encode(error_envelope(error, request_id, style))
    headers = ANSWER_HEADERS[style] % {b"length": len(content), b"id": request_id.encode()}
    return RenderedError(status, headers + _extra_headers(error, status), content)


def _extra_headers(error: Exception, status: int) -> bytes:
    headers = b""
    if isinstance(error, MethodNotAllowed):
        headers += b"allow: %b\r\n" % error.allowed.encode()
    if isinstance(error, WebSocketRefused):
        headers += b"upgrade: HTTP/1.1\r\n"
    if status == 401:
        headers += b"www-authenticate: Bearer\r\n"
    if isinstance(error, errors.TollkeeperError):
        if error.retry_after_s is not None:
            wait = min(max(error.retry_after_s, 1), errors.RETRY_AFTER_S_MAX)
            headers += b"retry-after: %d\r\n" % wait
        if error.charged or status in POINTLESS_TO_RETRY:
            headers += b"x-should-retry: false\r\n"
    return headers
