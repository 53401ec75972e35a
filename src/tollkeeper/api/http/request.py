"""Reads and checks the parts of an HTTP request: key, content type, body, query."""

from collections.abc import Hashable
from types import NoneType
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from tollkeeper.api.http import strict_json
from tollkeeper.api.http.bodies_in_flight import BodyShare
from tollkeeper.api.http.endpoint import AnyEndpoint, HeaderIndex
from tollkeeper.api.http.envelope import BodyTimeout, PayloadTooLarge, UnsupportedMediaType
from tollkeeper.api.http.exchange import Exchange
from tollkeeper.api.http.head import HeadReading, RequestHead
from tollkeeper.api.http.json_bounds import check_bounds, is_large, plain_elements
from tollkeeper.api.http.request_memory import memory_of
from tollkeeper.domain.access import KeyKind
from tollkeeper.domain.errors import InvalidRequest, Unauthenticated
from tollkeeper.large_requests import PARTS_AT_ONCE, beside_the_loop
from tollkeeper.timeouts import timeout

T = TypeVar("T")

PATH_ID_LENGTH_MAX = 200
_JSON = b"application/json"
_UTF8 = frozenset({b"utf-8", b"utf8", b'"utf-8"', b'"utf8"'})
_QUERY_FIELDS_MAX = 1000
# A body that has not arrived needs at least this much: its connection, its task and what is read at once.
_FIRST_SHARE_BYTES = 64 << 10


def header_values(headers: HeaderIndex, name: bytes) -> tuple[bytes, ...]:
    return headers.get(name, ())


def read_key(head: RequestHead, reading: HeadReading, customer_key_header: bytes) -> None:
    kind = reading.endpoint.key_kind
    reading.key = presented_key(head.headers, kind, customer_key_header)


def check_rest(head: RequestHead, reading: HeadReading) -> None:
    """Checks what else a head says. It is not done again for a head that is repeated."""
    endpoint = reading.endpoint
    check_path_ids(reading.path)
    if endpoint.takes_body:
        check_content_type(head.headers)
    head.reading = reading


def presented_key(headers: HeaderIndex, kind: KeyKind, customer_key_header: bytes) -> str:
    """The API key of the request. Two different keys are refused as a mistake or an attack."""
    key = _bearer_token(headers)
    if kind is KeyKind.PROJECT:
        for other in headers.get(customer_key_header, ()):
            if key is not None and other != key:
                raise Unauthenticated("The request has two different API keys: send one.")
            key = other
    if key is None:
        raise Unauthenticated("An API key is required: 'Authorization: Bearer <API key>'.")
    return key.decode("latin-1")


def _bearer_token(headers: HeaderIndex) -> bytes | None:
    values = headers.get(b"authorization")
    if values is None:
        return None
    if len(values) > 1:
        raise Unauthenticated("Send only one Authorization header.")
    scheme, _, token = values[0].partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated("The Authorization header must be 'Bearer <API key>'.")
    return token


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
    """Whether it is application/json, perhaps with UTF-8 as its charset. Takes linear time."""
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


async def read_body(
    exchange: Exchange, share: BodyShare, *, bytes_max: int, timeout_s: float
) -> bytes:
    """Returns the body, which usually arrived with the headers. A body that declares too large a length
    is refused before it is read."""
    if exchange.body_bytes > bytes_max:
        raise PayloadTooLarge(f"The body exceeds {bytes_max} bytes.")
    body = exchange.body
    if body is not None:
        return body

    def grow_to(size: int) -> None:
        if size > bytes_max:
            raise PayloadTooLarge(f"The body exceeds {bytes_max} bytes.")
        share.grow_to(max(size, _FIRST_SHARE_BYTES))

    try:
        with timeout(timeout_s):
            return await exchange.receive_body(grow_to)
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


class JsonDecoding:
    """Decodes bodies, after each share has grown to the memory that its request needs. Large ones are
    decoded beside the event loop, one at a time, so that other requests go on."""

    def __init__(self, elements_max: int) -> None:
        self._elements_max = elements_max

    async def decode(
        self, owner: Hashable, body: bytes, decoder: msgspec.json.Decoder[T], share: BodyShare
    ) -> tuple[T, bool]:
        """Returns the decoded body, and whether it is large."""
        if not is_large(body):
            share.grow_to(self._memory_of(body))
            return strict_json.decode_bounded(body, decoder), False
        share.grow_to(await beside_the_loop(owner, self._memory_of, body))
        return await beside_the_loop(owner, strict_json.decode_bounded, body, decoder), True

    def _memory_of(self, body: bytes) -> int:
        elements = plain_elements(body, self._elements_max)
        if elements is None:
            elements = check_bounds(body, self._elements_max)
        return memory_of(body, elements)


async def decode_body(
    endpoint: AnyEndpoint,
    decoder: msgspec.json.Decoder[Any],
    body: bytes,
    decoding: JsonDecoding,
    share: BodyShare,
    *,
    owner: Hashable,
) -> tuple[Any, bool]:
    """Returns the decoded body, None if the endpoint takes none, and whether it is large."""
    if not endpoint.takes_body:
        if body:
            raise InvalidRequest("This operation takes no body.")
        return None, False
    decoded, large = await decoding.decode(owner, body, decoder, share)
    if endpoint.stored:
        strict_json.refuse_nul(body, decoded)
    return decoded, large


def grow_for_parts(share: BodyShare, decoded: Any, body: bytes, *, is_large: bool) -> None:
    """A backend that makes one completion at a time gets a body for each, several at once."""
    parts = getattr(decoded, "n", None) or 1
    if is_large:
        parts = min(parts, PARTS_AT_ONCE)
    if parts > 1:
        share.grow_to(share.size + (parts - 1) * len(body))
