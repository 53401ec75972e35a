"""The connection of a request parser in tests that have no socket."""

from dataclasses import dataclass, field

from tollkeeper.hosting.http_exchange import HttpExchange


@dataclass
class RequestReceiver:
    """A connection that only remembers its requests."""

    exchanges: list[HttpExchange] = field(default_factory=list)
    peer: str = ""
    paused: bool = False
    ready: bool = False

    async def resumed(self) -> None: ...

    def send(self, data: bytes) -> None:
        raise AssertionError("nobody answers")

    def write(self, data: bytes) -> None:
        raise AssertionError("nobody answers")

    def read_on(self) -> None: ...

    def read_no_further(self) -> None: ...

    def answered(self, exchange: HttpExchange) -> None: ...

    def abandoned(self, exchange: HttpExchange) -> None: ...

    def request_begun(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
