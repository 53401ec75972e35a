"""`Endpoint`, one row of the route table, and what its handler takes and returns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar, final

import msgspec

from tollkeeper.calls.inference import ErrorValues
from tollkeeper.core.access import AdminCaller, Caller, KeyKind, Permission, ProjectCaller
from tollkeeper.core.errors import TollkeeperError
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.http.envelope import ErrorStyle, error_entry
from tollkeeper.http.exchange import HeaderIndex
from tollkeeper.http.request_memory import OrganizationMemory
from tollkeeper.http.sse import EventStream
from tollkeeper.tenants.authentication import CachedKey

B = TypeVar("B")  # the type of the decoded body, or None
Q = TypeVar("Q")  # the type of the decoded query, or None


@dataclass(slots=True, eq=False)
class HeaderContext:
    """Requests with the same request line and headers may share one, even at the same time."""

    endpoint: "AnyEndpoint"
    # None if the endpoint takes no body.
    decoder: msgspec.json.Decoder[Any] | None
    path: dict[str, str]
    headers: HeaderIndex
    # Empty: no such header.
    cost_header: str
    answer_headers: bytes
    key: str = ""
    digest: bytes = b""
    # If it was fresh at the last request.
    cached_key: CachedKey | None = None
    query: Any = None
    # For whom the headers were last checked, which also sets the fields below.
    caller: Caller | None = None
    memory: OrganizationMemory = field(init=False)
    session: str | None = None
    # Undecoded; None unless the request has exactly one.
    traceparent: bytes | None = None


class Request(Generic[B, Q]):
    """The caller is authenticated and has the permission; path, query and body are valid."""

    id: str
    operation: str
    # One of the two is set: project routes take project keys, all others admin keys.
    project_caller: ProjectCaller
    admin_caller: AdminCaller
    context: HeaderContext
    body: B
    raw_body: bytes
    # Undecoded, by name. Only set for a body with `message_members`.
    fields: dict[str, msgspec.Raw]
    # So large that processing it at once would block the event loop.
    is_large = False
    # Set by the call script.
    is_call = False
    # Calls back if the client disconnects before the answer is complete.
    on_disconnect: Callable[[Callable[[], None]], None]
    # From the handler, each with CRLF at its end. Errors and streams are sent without them.
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
        name = self.context.cost_header
        if name and cost_picousd is not None:
            self.further_headers = f"{name}: {usd_from_picousd(cost_picousd)}\r\n".encode()

    def error_values(self, error: BaseException) -> ErrorValues:
        entry = error_entry(error)
        if isinstance(error, TollkeeperError):
            return entry.status, entry.code, error.place, error.reason
        return entry.status, entry.code, None, None


class StreamedResponse(Protocol):
    async def run(self, stream: EventStream) -> None:
        """Ends the stream, too. May raise before or after the first record."""
        ...

    def failure(self, error: Exception) -> bytes:
        """The last record, if the stream fails after its first."""
        ...


@final
class Streamed(msgspec.Struct, frozen=True):
    """The application runs `answer`, which writes the stream."""

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
    # Of JSON Schema, such as "date".
    format: str | None = None
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultHeader:
    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[B, Q]):
    operation: str
    method: str
    path: str
    tag: str
    summary: str
    permission: Permission
    key_kind: KeyKind
    handle: Handler[B, Q]
    result: type[msgspec.Struct]
    # For OpenAPI, without those common to all, to all with a body, or to the administration.
    errors: frozenset[int]
    body: type[B] = NoneType  # type: ignore[assignment]
    query: type[Q] = NoneType  # type: ignore[assignment]
    headers: tuple[HeaderParameter, ...] = ()
    result_headers: tuple[ResultHeader, ...] = ()
    # The body goes to the database, so it mustn't have U+0000, which PostgreSQL can't store. Its
    # size counts towards the administration rate.
    stored: bool = False
    # Admission reads the key again. Only then may authentication use a cached one.
    admitted: bool = False
    # Counts towards the project's rate. Above it, requests are rejected before their body is read.
    rated: bool = False
    streams: bool = False
    error_style: ErrorStyle = ErrorStyle.USUAL

    @property
    def takes_body(self) -> bool:
        return self.body is not NoneType


AnyEndpoint = Endpoint[Any, Any]
