"""Balances a client's requests over several gateways, as an HTTP transport.

Each request goes to the next gateway. If this gateway cannot be reached, loses the connection, or
answers that it cannot serve now, the request goes to the gateway after it.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx2

# The statuses after which the request goes to another gateway.
_ELSEWHERE = {500, 502, 503, 504}
_PAUSE_S = 0.05


@dataclass
class Attempts:
    """Counts the results of all attempts."""

    acknowledged: list[str] = field(default_factory=list)
    # Number of error answers by status, and number of connection failures by exception name.
    refused: dict[int, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    # Answers that are neither 200 nor an error in the envelope, and connection failures that the
    # test has not excused.
    strange: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Returns the number of attempts after which the request went to another gateway."""
        refused = sum(number for status, number in self.refused.items() if status in _ELSEWHERE)
        return refused + sum(self.lost.values())


class Balancer(httpx2.AsyncBaseTransport):
    def __init__(
        self, members: Sequence[str], *, patience_s: float, timeout_s: float, lenient: bool = False
    ) -> None:
        """`members` are base URLs; the list may be changed at any time. If `lenient`, no connection
        failure counts as strange."""
        self._lenient = lenient
        self.members = list(members)
        self.attempts = Attempts()
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._next = 0
        self._excused: dict[str, float] = {}
        self._slow_until = 0.0
        self._transport = httpx2.AsyncHTTPTransport(
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=5)
        )

    def excuse(self, member: str, *, longer_s: float = math.inf) -> None:
        """Excuses connection failures of this gateway, until `longer_s` seconds from now, because the test
        disturbs it."""
        self._excused[member] = time.monotonic() + longer_s

    def excuse_slowness(self, *, longer_s: float = math.inf) -> None:
        """Excuses read timeouts of all gateways, because the test disturbs a server that they all need."""
        self._slow_until = time.monotonic() + longer_s

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        until = time.monotonic() + self._patience_s
        while True:
            answer = await self._attempt(request)
            if answer is not None and answer.status_code not in _ELSEWHERE:
                return answer
            if time.monotonic() > until:
                if answer is None:
                    raise httpx2.ConnectError("no gateway can be reached", request=request)
                return answer
            await asyncio.sleep(_PAUSE_S)

    async def _attempt(self, request: httpx2.Request) -> httpx2.Response | None:
        """Returns None if the connection failed."""
        self._next += 1
        chosen = self.members[self._next % len(self.members)]
        member, began = httpx2.URL(chosen), time.monotonic()
        url = request.url.copy_with(scheme=member.scheme, host=member.host, port=member.port)
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
        sent = httpx2.Request(
            request.method,
            url,
            headers=headers,
            content=request.content,
            extensions={"timeout": httpx2.Timeout(self._timeout_s).as_dict()},
        )
        try:
            answer = await self._transport.handle_async_request(sent)
            await answer.aread()
        except httpx2.TransportError as exc:
            name = type(exc).__name__
            self.attempts.lost[name] = self.attempts.lost.get(name, 0) + 1
            if not self._is_excused(chosen, exc, began):
                self.attempts.strange.append(f"{chosen}: {exc!r}")
            return None
        self._note(answer)
        return answer

    def _is_excused(self, member: str, exc: httpx2.TransportError, began: float) -> bool:
        if self._lenient or self._excused.get(member, 0) >= began:
            return True
        return isinstance(exc, httpx2.ReadTimeout) and self._slow_until >= began

    def _note(self, answer: httpx2.Response) -> None:
        if answer.status_code == 200:
            self.attempts.acknowledged.append(answer.headers["x-request-id"])
            return
        counts = self.attempts.refused
        counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
        try:
            error = answer.json()["error"]
            enveloped = set(error) >= {"code", "message", "type", "param", "request_id"}
        except (ValueError, KeyError, TypeError):
            enveloped = False
        if not enveloped:
            self.attempts.strange.append(f"{answer.status_code} {answer.text[:200]}")

    async def aclose(self) -> None:
        await self._transport.aclose()
