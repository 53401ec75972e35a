"""One request to a service that gives tokens: bounded in time and size, with a connection of its own.

Tokens are asked for about once an hour, so no connection is kept for them.
"""

import functools
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlsplit

import msgspec

from tollkeeper.backends.config import host_and_port, shown_url
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.transport.http1 import HttpFailure, ResponseHead
from tollkeeper.backends.transport.pool import ConnectionPool, PoolLimits

_ANSWER_BYTES_MAX = 256 << 10
_CONNECT_TIMEOUT_S = 5.0
_LIMITS = PoolLimits(
    connections_max=1,
    idle_connections_max=0,
    keep_alive_s=1.0,
    connect_timeout_s=_CONNECT_TIMEOUT_S,
    waiting_max=1,
)
# Where a plain connection never leaves the machine or its host.
_LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
_WORD_MAX = 64


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """Raises IdentityFailure where the body is no JSON object."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (ValueError, RecursionError):
            raise IdentityFailure("the token service's answer is no JSON object") from None


async def ask(
    url: str,
    *,
    deadline: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> TokenAnswer:
    """The answer to one request. `url` may have a query. Raises IdentityFailure."""
    address = urlsplit(url)
    origin = f"{address.scheme}://{address.netloc}"
    try:
        host, port = host_and_port(origin)
    except ValueError as exc:
        raise IdentityFailure(str(exc)) from None
    tls = _trusted_by_system() if address.scheme == "https" else None
    pool = ConnectionPool(host, port, tls, _LIMITS)
    try:
        connection = await pool.acquire(deadline=deadline)
        try:
            request = _request(method, address.netloc, _target(url), headers or {}, body)
            connection.send(request, b"", deadline=deadline, idle_s=_CONNECT_TIMEOUT_S)
            head: ResponseHead = await connection.read_head()
            return TokenAnswer(head.status, await _read(connection.read))
        finally:
            pool.release(connection)
    except HttpFailure as failure:
        raise IdentityFailure(f"{shown_url(origin)} does not answer: {failure}") from None
    finally:
        await pool.close()


@functools.cache
def _trusted_by_system() -> ssl.SSLContext:
    """Made once: reading what the system trusts takes tens of milliseconds."""
    return ssl.create_default_context()


async def post_form(url: str, fields: Mapping[str, str], *, deadline: float) -> TokenAnswer:
    require_https(url)
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    written = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in fields.items())
    return await ask(
        url, deadline=deadline, method="POST", headers=headers, body=written.encode("ascii")
    )


def require_https(url: str) -> None:
    """A secret leaves the machine encrypted only. Raises IdentityFailure."""
    address = urlsplit(url)
    if address.scheme != "https" and address.hostname not in _LOCAL_HOSTS:
        raise IdentityFailure(f"{shown_url(url)!r} must start with https://")


def check_success(answer: TokenAnswer) -> None:
    """Raises IdentityFailure with the status, and the published word for the error if there is one.
    No other text of the answer is shown: it may quote what was sent."""
    if answer.status == 200:
        return
    word = ""
    try:
        told = answer.json()
    except IdentityFailure:
        told = {}
    error = told.get("error")
    if isinstance(error, dict):
        error = error.get("status")
    if isinstance(error, str) and len(error) <= _WORD_MAX and error.replace("_", "").isalnum():
        word = f" ({error})"
    raise IdentityFailure(f"the token service answered with status {answer.status}{word}")


async def _read(read: Callable[[], Awaitable[bytes]]) -> bytes:
    chunks = []
    size = 0
    while chunk := await read():
        size += len(chunk)
        if size > _ANSWER_BYTES_MAX:
            raise IdentityFailure("the token service's answer is too large")
        chunks.append(chunk)
    return b"".join(chunks)


def _target(url: str) -> str:
    address = urlsplit(url)
    path = address.path or "/"
    return f"{path}?{address.query}" if address.query else path


def _request(
    method: str, netloc: str, target: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Raises IdentityFailure for a value that is no header text: a file or a variable may hold
    anything."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {netloc}", "user-agent: tollkeeper"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["connection: close", f"content-length: {len(body)}", "", ""]
    for line in lines[:-2]:
        if not line.isascii() or not line.isprintable():
            raise IdentityFailure("a part of the request for a token is no header text")
    return "\r\n".join(lines).encode("ascii") + body
