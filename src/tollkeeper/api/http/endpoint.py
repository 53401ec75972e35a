"""Defines `Endpoint`, one row of the route table, and the types that an endpoint's handler takes and
returns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

import msgspec

from tollkeeper.api.http.envelope import ErrorStyle, error_entry
from tollkeeper.api.http.request_memory import OrganizationMemory
from tollkeeper.api.http.sse import EventStream
from tollkeeper.api.use_cases import ApiServices
from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, Permission, ProjectCaller
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.calls.inference import ErrorValues
from tollkeeper.services.tenants.authentication import CachedKey

B = TypeVar("B")  # the type of the decoded body, or None
Q = TypeVar("Q")  # the type of the decoded query, or None


# The values of each header, by the header's lower-case name.
HeaderIndex: TypeAlias = dict[bytes, tuple[bytes, ...]]


@dataclass(slots=True, eq=False)
class HeaderContext:
    """Contains the endpoint of a request and the values that the gateway has read from the request
    line and the headers. Requests with the same request line and headers may share one object, even if
    they are in progress at the same time."""

    endpoint: "AnyEndpoint"
    # The decoder for the body, or None if the endpoint takes no body.
    decoder: msgspec.json.Decoder[Any] | None
    # The values of the path parameters, by name.
    path: dict[str, str]
    headers: HeaderIndex
    # The header with the call's cost in answers; empty if the operator has configured none.
    cost_header: str
    # The template of the headers of an answer in JSON.
    answer_headers: bytes
    # The API key in the headers, and the key's digest.
    key: str = ""
    digest: bytes = b""
    # The key's entry in the cache of authentication, if it was fresh at the last request.
    cached_key: CachedKey | None = None
    query: Any = None
    # The caller (the object that describes an authenticated key) for which the headers were last
    # checked. The check also sets the fields below.
    caller: Caller | None = None
    memory: OrganizationMemory = field(init=False)
    session: str | None = None
    # The undecoded `traceparent` header if the request has exactly one, otherwise None.
    traceparent: bytes | None = None


class Request(Generic[B, Q]):
    """Contains a request for a handler. The caller is authenticated and has the endpoint's
    permission, and path, query and body are valid."""

    id: str
    # The name of the endpoint's operation.
    operation: str
    # The application sets one of the callers: project routes take project keys, and other routes admin
    # keys.
    project_caller: ProjectCaller
    admin_caller: AdminCaller
    context: HeaderContext
    body: B
    raw_body: bytes
    # The undecoded values of the body's fields, by name. Only set for a body with `message_members`.
    fields: dict[str, msgspec.Raw]
    # Whether the body is so large that processing it at once would block the event loop.
    is_large = False
    # Whether the request has started an inference call. The call script sets it.
    is_call = False
    # Registers a callback that is called if the client disconnects before the answer is complete.
    on_disconnect: Callable[[Callable[[], None]], None]
    # The header lines that the handler adds to the answer, each with CRLF at its end. Errors and streams
    # are sent without them.
    further_headers = b""

    @property
    def path(self) -> dict[str, str]:
        return self.context.path

    @property
    def query(self) -> Q:
        return self.context.query  # type: ignore[no-any-return]

    @property
    def headers(self) -> HeaderIndex:
        return self.context.headers

    def add_cost_header(self, cost_picousd: int | None) -> None:
        """Adds the header with the call's cost to the answer, unless the operator has configured no such
        header or the cost is unknown."""
        name = self.context.cost_header
        if name and cost_picousd is not None:
            self.further_headers = f"{name}: {usd_from_picousd(cost_picousd)}\r\n".encode()

    def error_values(self, error: BaseException) -> ErrorValues:
        entry = error_entry(error)
        if isinstance(error, TollkeeperError):
            return entry.status, entry.code, error.place, error.reason
        return entry.status, entry.code, None, None


class StreamedResponse(Protocol):
    """Writes one answer as a stream of records (server-sent events)."""

    async def run(self, stream: EventStream) -> None:
        """Writes the answer and ends the stream. May raise before or after the first record."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Returns the last record of a stream that failed after its first record."""
        ...


@final
class Streamed(msgspec.Struct, frozen=True):
    """Contains a handler's result if the answer is a stream. The application runs `answer`, which
    writes the stream."""

    answer: StreamedResponse


Handler = Callable[[ApiServices, Request[B, Q]], Awaitable[msgspec.Struct | Streamed]]


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    name: str
    description: str
    required: bool = False
    length_min: int = 0
    length_max: int | None = None
    pattern: str | None = None
    # The name of a format of JSON Schema, for example "date".
    format: str | None = None
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """Describes a header of an endpoint's successful answers."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[B, Q]):
    # The name of the OpenAPI operation, of the service method and of the command.
    operation: str
    method: str
    path: str
    tag: str
    summary: str
    permission: Permission
    key_kind: KeyKind
    handle: Handler[B, Q]
    result: type[msgspec.Struct]
    # The endpoint's error statuses, for the OpenAPI document. Statuses that are common to all
    # endpoints, to all endpoints with a body or to all administration endpoints are not repeated.
    errors: frozenset[int]
    body: type[B] = NoneType  # type: ignore[assignment]
    query: type[Q] = NoneType  # type: ignore[assignment]
    headers: tuple[HeaderParameter, ...] = ()
    result_headers: tuple[ResultHeader, ...] = ()
    # Whether the body is stored in the database. Such a body must not contain the character U+0000,
    # because PostgreSQL's text type cannot store this character. The body's size counts towards the
    # administration rate.
    stored: bool = False
    # Whether a request goes through admission, which reads the request's key from the database again.
    # Authentication may use a cached key only for such requests.
    admitted: bool = False
    # Whether a request counts towards the request rate of its project. A request above the rate is
    # rejected before its body is read.
    rated: bool = False
    # Whether a successful answer may be an event stream.
    streams: bool = False
    error_style: ErrorStyle = ErrorStyle.USUAL

    @property
    def takes_body(self) -> bool:
        return self.body is not NoneType


AnyEndpoint = Endpoint[Any, Any]
