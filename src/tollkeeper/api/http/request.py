"""Reads and checks the parts of an HTTP request: host, key, content type, body, query."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from types import NoneType
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from tollkeeper.api.http import strict_json
from tollkeeper.api.http.endpoint import AnyEndpoint, HeaderIndex
from tollkeeper.api.http.envelope import BodyTimeout, Headers, PayloadTooLarge, UnsupportedMediaType
from tollkeeper.domain.access import KeyKind
from tollkeeper.domain.errors import InvalidRequest, Unauthenticated
from tollkeeper.timeouts import timeout

T = TypeVar("T")
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

PATH_ID_LENGTH_MAX = 200
_JSON_TYPE = re.compile(
    rb'\s*application/json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?;?\s*', re.IGNORECASE
)
_QUERY_FIELDS_MAX = 1000
_DIGITS_MAX = 9


class ClientGone(Exception):
    """The caller left before its request was complete, so no answer is sent."""


def header_index(headers: Headers) -> HeaderIndex:
    """Headers by name: a request looks up about six of them, and a dictionary makes that fast."""
    index: HeaderIndex = {}
    for name, value in headers:
        if name in index:
            index[name] += (value,)
        else:
            index[name] = (value,)
    return index


def header_values(headers: HeaderIndex, name: bytes) -> tuple[bytes, ...]:
    return headers.get(name, ())


def presented_key(headers: HeaderIndex, kind: KeyKind, customer_key_header: bytes) -> str:
    """The API key of the request. Two different keys are refused as a mistake or an attack."""
    keys = set()
    authorizations = header_values(headers, b"authorization")
    if len(authorizations) > 1:
        raise Unauthenticated("Send only one Authorization header.")
    for value in authorizations:
        scheme, _, token = value.partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            raise Unauthenticated("The Authorization header must be 'Bearer <API key>'.")
        keys.add(token.strip())
    if kind is KeyKind.PROJECT:
        keys.update(header_values(headers, customer_key_header))
    if not keys:
        raise Unauthenticated("An API key is required: 'Authorization: Bearer <API key>'.")
    if len(keys) > 1:
        raise Unauthenticated("The request has two different API keys: send one.")
    return keys.pop().decode("latin-1")


def check_host(headers: HeaderIndex, http_version: str) -> None:
    """Refuses requests with no Host header or with several; the HTTP server does not check this."""
    hosts = header_values(headers, b"host")
    if len(hosts) > 1 or (not hosts and http_version != "1.0"):
        raise InvalidRequest("The request needs exactly one Host header.")


def check_path_ids(path: dict[str, str]) -> None:
    for name, value in path.items():
        if len(value) > PATH_ID_LENGTH_MAX:
            raise InvalidRequest(
                f"An id in the path may have at most {PATH_ID_LENGTH_MAX} characters.", param=name
            )


def check_content_type(headers: HeaderIndex) -> None:
    values = header_values(headers, b"content-type")
    if len(values) != 1 or _JSON_TYPE.fullmatch(values[0]) is None:
        raise UnsupportedMediaType
    if header_values(headers, b"content-encoding") not in ((), (b"identity",)):
        raise UnsupportedMediaType(
            "A body with a Content-Encoding is not accepted: send plain JSON."
        )


async def read_body(
    receive: Receive, headers: HeaderIndex, *, bytes_max: int, timeout_s: float
) -> bytes:
    declared = header_values(headers, b"content-length")
    if declared and (len(declared[0]) > _DIGITS_MAX + 3 or int(declared[0]) > bytes_max):
        raise PayloadTooLarge(f"The body exceeds {bytes_max} bytes.")
    pieces: list[bytes] = []
    size = 0
    try:
        with timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece: bytes = message["body"]
                size += len(piece)
                if size > bytes_max:
                    raise PayloadTooLarge(f"The body exceeds {bytes_max} bytes.")
                if not pieces and not message["more_body"]:
                    return piece  # Usually the whole body is one piece, so nothing is joined.
                pieces.append(piece)
                if not message["more_body"]:
                    return b"".join(pieces)
    except TimeoutError:
        raise BodyTimeout from None


def decode_query(query_string: bytes, kind: type[T]) -> T:
    """Decodes a query string. An array is a repeated name, a comma-separated value, or `name[]`."""
    if kind is NoneType:
        return cast("T", None)
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise InvalidRequest("The query string is not valid.") from None
    arrays = _array_fields(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        name = name.removesuffix("[]") if name.removesuffix("[]") in arrays else name  # noqa: PLW2901
        if name in arrays:
            values.setdefault(name, []).extend(value.split(","))
        elif name in values:
            raise InvalidRequest("This parameter may be given only once.", param=name[:200])
        else:
            values[name] = value
    return strict_json.convert(values, kind)


def _array_fields(kind: type) -> frozenset[str]:
    return frozenset(
        field.name
        for field in msgspec.structs.fields(kind)
        if isinstance(msgspec.inspect.type_info(field.type), msgspec.inspect.ListType)
    )


def decode_body(endpoint: AnyEndpoint, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    if not endpoint.takes_body:
        if body:
            raise InvalidRequest("This operation takes no body.")
        return None
    decoded = strict_json.decode(body, decoder)
    if endpoint.stored:
        strict_json.refuse_nul(body, decoded)
    return decoded
