"""Defines `Endpoint`, a row of the route table, and the types that a handler takes and returns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from tollkeeper.api.http.conventions import HttpConventions
from tollkeeper.api.http.envelope import ErrorStyle, words_for
from tollkeeper.api.http.request_memory import KeyAccount
from tollkeeper.api.http.sse import EventStream
from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, Permission, ProjectCaller
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.use_cases import Services

B = TypeVar("B")  # the body's struct, or None
Q = TypeVar("Q")  # the query's struct, or None


# All values of each header, by lower-case name.
HeaderIndex: TypeAlias = dict[bytes, tuple[bytes, ...]]


class HeadReading:
    """Contains the endpoint that headers ask for, and their parts that the endpoint needs. Requests
    with the same headers share it."""

    __slots__ = (
        "account",
        "caller",
        "decoder",
        "digest",
        "endpoint",
        "headers",
        "key",
        "path",
        "query",
        "session",
        "traceparent",
    )

    def __init__(
        self,
        endpoint: "AnyEndpoint",
        decoder: msgspec.json.Decoder[Any] | None,
        path: dict[str, str],
        headers: HeaderIndex,
    ) -> None:
        self.endpoint = endpoint
        # The body's decoder; None if the endpoint takes no body.
        self.decoder = decoder
        # The parameters in the path.
        self.path = path
        self.headers = headers
        # The presented key. Its caller may change between two requests.
        self.key = ""
        self.digest = b""
        self.query: Any = None
        # The caller for which the headers were last found valid. The fields below are set then.
        self.caller: Caller | None = None
        self.account: KeyAccount
        self.session: str | None = None
        # The client's undecoded trace header; None if there is none or more than one.
        self.traceparent: bytes | None = None


class Request(msgspec.Struct, Generic[B, Q], frozen=True):
    """Contains a checked request: the caller is authenticated and has the permission, and path,
    query and body are valid."""

    id: str
    caller: Caller
    reading: HeadReading
    body: B
    raw_body: bytes
    # Whether processing the whole body would block the event loop.
    is_large: bool
    # Registers a callback for a disconnect before the answer is complete.
    on_disconnect: Callable[[Callable[[], None]], None]
    conventions: HttpConventions

    @property
    def path(self) -> dict[str, str]:
        return self.reading.path

    @property
    def query(self) -> Q:
        return self.reading.query  # type: ignore[no-any-return]

    @property
    def headers(self) -> HeaderIndex:
        return self.reading.headers

    @property
    def operation(self) -> str:
        return self.reading.endpoint.operation

    def error_words(self, error: BaseException) -> tuple[int, str]:
        words = words_for(error)
        return words.status, words.code

    @property
    def admin_caller(self) -> AdminCaller:
        assert isinstance(self.caller, AdminCaller), "the route table admits admin keys only"
        return self.caller

    @property
    def project_caller(self) -> ProjectCaller:
        assert isinstance(self.caller, ProjectCaller), "the route table admits project keys only"
        return self.caller


class Reply(msgspec.Struct, frozen=True):
    """Contains a result with its own headers or status."""

    result: msgspec.Struct
    # Header lines, each with its line end.
    headers: bytes = b""
    status: int = 200


def with_cost(
    result: msgspec.Struct, cost_picousd: int | None, conventions: HttpConventions
) -> msgspec.Struct | Reply:
    """Adds the header with the cost of a call, if the operator has named one and the cost is
    known."""
    if not conventions.cost_header or cost_picousd is None:
        return result
    line = f"{conventions.cost_header}: {usd_from_picousd(cost_picousd)}\r\n"
    return Reply(result, headers=line.encode())


class StreamedAnswer(Protocol):
    """Writes an answer piece by piece."""

    async def run(self, stream: EventStream) -> None:
        """Writes the answer and ends the stream. May raise before or after the first record."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Returns the record that ends a stream which failed after its first record."""
        ...


class Streamed(msgspec.Struct, frozen=True):
    """Contains a handler's result: an answer that the application runs and writes to the
    connection."""

    answer: StreamedAnswer


Handler = Callable[[Services, Request[B, Q]], Awaitable[msgspec.Struct | Reply | Streamed]]


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    name: str
    description: str
    required: bool = False
    length_min: int = 0
    length_max: int | None = None
    pattern: str | None = None
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """Describes a header of an endpoint's successful answers."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[B, Q]):
    # The service method, the OpenAPI operation and the command have the same name.
    operation: str
    method: str
    path: str
    tag: str
    summary: str
    permission: Permission
    key_kind: KeyKind
    handle: Handler[B, Q]
    result: type[msgspec.Struct]
    # Error statuses in addition to those of every endpoint and of every endpoint with a body.
    errors: frozenset[int]
    body: type[B] = NoneType  # type: ignore[assignment]
    query: type[Q] = NoneType  # type: ignore[assignment]
    headers: tuple[HeaderParameter, ...] = ()
    result_headers: tuple[ResultHeader, ...] = ()
    # Whether the body is stored in the database, whose text type cannot contain U+0000. Its size
    # counts towards the administration rate.
    stored: bool = False
    # Whether admission reads the key again from the database, so that authentication may use a
    # cached one.
    admitted: bool = False
    # Whether a request counts against its project's rate: beyond the rate it is rejected before its
    # body is read.
    rated: bool = False
    # Whether a successful answer may be an event stream.
    streams: bool = False
    error_style: ErrorStyle = ErrorStyle.USUAL

    @property
    def takes_body(self) -> bool:
        return self.body is not NoneType


AnyEndpoint = Endpoint[Any, Any]
