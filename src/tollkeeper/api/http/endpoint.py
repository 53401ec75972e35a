"""What an endpoint is: one row of the route table. Decoding and the OpenAPI document read it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from tollkeeper.api.http.conventions import HttpConventions
from tollkeeper.api.http.envelope import Headers, words_for
from tollkeeper.api.http.sse import EventStream
from tollkeeper.domain.access import AdminCaller, Caller, KeyKind, Permission, ProjectCaller
from tollkeeper.services.use_cases import Services

B = TypeVar("B")  # the body's struct, or None
Q = TypeVar("Q")  # the query's struct, or None


# Lower-case names; a repeated header has each of its values.
HeaderIndex: TypeAlias = dict[bytes, tuple[bytes, ...]]


class Request(msgspec.Struct, Generic[B, Q], frozen=True):
    """A request that may be acted on: its caller is known and allowed, its parts are checked."""

    id: str
    caller: Caller
    path: dict[str, str]
    query: Q
    body: B
    raw_body: bytes
    headers: HeaderIndex
    # Registers what is to be done when the caller leaves before the answer is complete.
    on_disconnect: Callable[[Callable[[], None]], None]
    operation: str
    conventions: HttpConventions

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
    """A result that is more than its body."""

    result: msgspec.Struct
    headers: Headers = msgspec.field(default_factory=list)
    status: int = 200


class StreamedAnswer(Protocol):
    """An answer that is written piece by piece."""

    async def run(self, stream: EventStream) -> None:
        """Writes the answer and its end. Raises where it fails, before or after the start."""
        ...

    def failure(self, error: Exception) -> bytes:
        """The record that ends a stream which broke after its start."""
        ...


class Streamed(msgspec.Struct, frozen=True):
    """An answer that is still to be run, against the caller's open connection."""

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


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """A header that only a successful answer of one endpoint has."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[B, Q]):
    # The same word on every face: service method, OpenAPI operation, command.
    operation: str
    method: str
    path: str
    tag: str
    summary: str
    permission: Permission
    key_kind: KeyKind
    handle: Handler[B, Q]
    result: type[msgspec.Struct]
    # Statuses beyond those that every endpoint of its kind can answer.
    errors: frozenset[int]
    body: type[B] = NoneType  # type: ignore[assignment]
    query: type[Q] = NoneType  # type: ignore[assignment]
    headers: tuple[HeaderParameter, ...] = ()
    result_headers: tuple[ResultHeader, ...] = ()
    # The body is kept in the database, whose text cannot hold every character.
    stored: bool = False
    # Admission decides on the call and reads the key anew: authentication may remember it.
    admitted: bool = False
    # A successful answer may be an event stream.
    streams: bool = False
    # Errors are wrapped as Messages clients expect them.
    messages_style: bool = False

    @property
    def takes_body(self) -> bool:
        return self.body is not NoneType


AnyEndpoint = Endpoint[Any, Any]
