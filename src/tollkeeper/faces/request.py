"""Reads and checks the parts of an HTTP request: key, other headers, body, query."""

from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from tollkeeper.core.access import KeyKind
from tollkeeper.core.conventions import SESSION_HEADERS
from tollkeeper.core.errors import InvalidRequest, Unauthenticated
from tollkeeper.core.runtime.timeouts import timeout
from tollkeeper.faces.endpoint import HeaderContext, HeaderParameter
from tollkeeper.faces.strict_json import convert
from tollkeeper.http.conventions import HttpConventions
from tollkeeper.http.envelope import BodyTimeout, PayloadTooLarge, UnsupportedMediaType
from tollkeeper.http.exchange import Exchange, HeaderIndex
from tollkeeper.http.request_memory import RequestShare

T = TypeVar("T")

PATH_ID_LENGTH_MAX = 200
_JSON = b"application/json"
_UTF8 = frozenset({b"utf-8", b"utf8", b'"utf-8"', b'"utf8"'})
_QUERY_FIELDS_MAX = 1000
# Reserved at least while a body arrives: the connection, the task and the data of one read.
_FIRST_SHARE_BYTES = 64 << 10

_SESSION_LENGTH_MAX = 512
# For all session headers: settings name them, and the second is accepted for compatibility.
SESSION_HEADER = HeaderParameter(
    name=SESSION_HEADERS[0],
    description="A cache-affinity hint: requests of one project with the same value go to the same "
    "replica of a backend if possible. It has no effect on other projects and organizations.",
    length_min=1,
    length_max=_SESSION_LENGTH_MAX,
    # What HTTP allows: no control characters but tabs, and no blanks at either end.
    pattern=r"^[!-~\x80-\xff]([\t -~\x80-\xff]*[!-~\x80-\xff])?$",
)


def header_values(headers: HeaderIndex, name: bytes) -> tuple[bytes, ...]:
    return headers.get(name, ())


def check_headers(context: HeaderContext, conventions: HttpConventions) -> None:
    """The path parameters and all headers but the key. What the handler needs goes to `context`."""
    endpoint, headers = context.endpoint, context.headers
    check_path_ids(context.path)
    if context.decoder is not None:
        check_content_type(headers)
    if SESSION_HEADER in endpoint.headers:
        context.session = session_of(headers, conventions.session_headers)
    traces = headers.get(b"traceparent", ())
    context.traceparent = traces[0] if len(traces) == 1 else None


def session_of(headers: HeaderIndex, names: tuple[str, ...]) -> str | None:
    """The first in the order of `names`. All must be valid, even if only one is used."""
    session: str | None = None
    for name in names:
        for value in headers.get(name.lower().encode(), ()):
            text = value.decode("latin-1")
            if not 1 <= len(text) <= _SESSION_LENGTH_MAX:
                raise InvalidRequest(
                    f"The header must have 1 to {_SESSION_LENGTH_MAX} characters.", param=name
                )
            session = text if session is None else session
    return session


def presented_key(headers: HeaderIndex, kind: KeyKind, customer_key_header: bytes) -> str:
    """An empty credential is ignored, and so is an Authorization with another scheme than Bearer:
    SDKs send an empty key if none is configured for one of the two headers, and proxies add
    `Basic`. Two different keys are rejected, because that's a mistake or an attack."""
    keys = {_bearer_token(headers)}
    if kind is KeyKind.PROJECT:
        keys.update(headers.get(customer_key_header, ()))
    keys.discard(b"")
    if len(keys) > 1:
        raise Unauthenticated("The request has two different API keys: send only one.")
    if not keys:
        raise Unauthenticated("An API key is required: 'Authorization: Bearer <API key>'.")
    return keys.pop().decode("latin-1")


def _bearer_token(headers: HeaderIndex) -> bytes:
    values = headers.get(b"authorization", (b"",))
    if len(values) > 1:
        raise Unauthenticated("Send only one Authorization header.")
    scheme, _, token = values[0].partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def check_path_ids(path: dict[str, str]) -> None:
    for name, value in path.items():
        if len(value) > PATH_ID_LENGTH_MAX:
            raise InvalidRequest(
                f"An id in the path may have at most {PATH_ID_LENGTH_MAX} characters.", param=name
            )


def check_content_type(headers: HeaderIndex) -> None:
    values = headers.get(b"content-type", ())
    if len(values) != 1 or not _is_json(values[0]):
        raise UnsupportedMediaType
    if headers.get(b"content-encoding", ()) not in ((), (b"identity",)):
        raise UnsupportedMediaType(
            "A body with a Content-Encoding is not accepted: send plain JSON."
        )


def _is_json(content_type: bytes) -> bool:
    """The charset may only be UTF-8. Takes linear time even for malicious values."""
    if content_type == _JSON:
        return True
    kind, *parameters = content_type.lower().split(b";")
    charsets = [parameter.strip() for parameter in parameters if parameter.strip()]
    if kind.strip() != _JSON or len(charsets) > 1:
        return False
    for charset in charsets:
        name, _, value = charset.partition(b"=")
        if name.strip() != b"charset" or value.strip() not in _UTF8:
            return False
    return True


async def read_body(exchange: Exchange, share: RequestShare, limits: HttpConventions) -> bytes:
    """Rejects a body that's too large as soon as its declared or received size shows it."""
    bytes_max = limits.body_bytes_max
    if exchange.body_bytes > bytes_max:
        raise PayloadTooLarge(f"The body exceeds {bytes_max} bytes.")

    def grow_to(size: int) -> None:
        if size > bytes_max:
            raise PayloadTooLarge(f"The body exceeds {bytes_max} bytes.")
        share.grow_to(max(size, _FIRST_SHARE_BYTES))

    try:
        with timeout(limits.body_timeout_s):
            return await exchange.receive_body(grow_to)
    except TimeoutError:
        raise BodyTimeout from None


def decode_query(query_string: bytes, kind: type[T]) -> T:
    """Arrays are repeated parameters or comma-separated values, and may be named `name[]`."""
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise InvalidRequest("The query string is not valid.") from None
    arrays = _array_fields(cast("type", kind))
    values: dict[str, Any] = {}
    for name, value in pairs:
        name = name.removesuffix("[]") if name.removesuffix("[]") in arrays else name  # noqa: PLW2901
        if name in arrays:
            values.setdefault(name, []).extend(value.split(","))
        elif name in values:
            raise InvalidRequest("This parameter may be given only once.", param=name[:200])
        else:
            values[name] = value
    return convert(values, kind)


@cache
def _array_fields(kind: type) -> frozenset[str]:
    return frozenset(
        field.name
        for field in msgspec.structs.fields(kind)
        if isinstance(msgspec.inspect.type_info(field.type), msgspec.inspect.ListType)
    )
