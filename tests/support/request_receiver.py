"""Replaces the connection of a request parser in tests without a socket, and collects its requests."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.http.envelope import HeadersTooLarge
from tollkeeper.http.http_exchange import HttpExchange
from tollkeeper.http.request_parser import KnownHeaders, RequestParser


@dataclass
class RequestReceiver:
    """Collects the requests of a connection, and does nothing else."""

    exchanges: list[HttpExchange] = field(default_factory=list)
    peer: str = ""
    paused: bool = False
    ready: bool = False
    owner: Hashable = None

    async def resumed(self) -> None: ...

    def send(self, data: bytes) -> None:
        raise AssertionError("nobody answers")

    def write(self, data: bytes) -> None:
        raise AssertionError("nobody answers")

    def read_body(self) -> None: ...

    def body_arrived(self) -> None: ...

    def pause_reading(self) -> None: ...

    def recognised(self, owner: Hashable) -> None: ...

    def send_last(self, exchange: HttpExchange, last: bytes) -> None: ...

    def abandoned(self, exchange: HttpExchange) -> None: ...

    def request_begun(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)


def parse_requests(
    segments: Iterable[bytes], header_bytes_max: int, known: KnownHeaders | None = None
) -> tuple[list[HttpExchange], bool]:
    """Returns the requests that have begun, and whether the rest was refused. With `known`, a head that
    equals the previous head or a known head is not parsed again."""
    receiver = RequestReceiver()
    parser = RequestParser(receiver, header_bytes_max, {} if known is None else known)
    try:
        for segment in segments:
            repeated = None
            if known is not None:
                repeated = parser.parse_repeated(segment) or parser.parse_known(segment)
            if repeated is not None:
                # This may be only the beginning of a request.
                receiver.request_begun(repeated)
                continue
            start = 0
            while start < len(segment):
                used = parser.feed(segment, start)
                assert used > 0, "every step gets on"
                start += used
    except (InvalidRequest, HeadersTooLarge):
        return receiver.exchanges, True
    return receiver.exchanges, False


def content_of(exchange: HttpExchange) -> object:
    """Returns the parsed contents of a request, for comparisons."""
    head = exchange.head
    return (head.method, head.path, head.query, head.headers, exchange.body)
