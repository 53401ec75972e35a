"""Determines the gateway's address, and sends one streamed chat request to the gateway, as a tenant's
program would."""

import asyncio
import http.client
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.settings import Settings

# The address to connect to if the gateway listens on all addresses.
_LOOPBACK_OF_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, and not listened on
_LINE_BYTES_MAX = 1_000_000
_REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Opened:
    """Reports that the gateway has sent its response headers. By now, either the call was rejected,
    or its hold (the amount reserved before the call) exists."""

    request_id: str
    status: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Contains a piece of the answer, or the error message."""

    text: str


def gateway_url(settings: Settings) -> str:
    """Returns the address under which clients reach the gateway, without a slash at the end."""
    if settings.console.gateway_url:
        return settings.console.gateway_url.rstrip("/")
    server = settings.server
    host = _LOOPBACK_OF_ANY_ADDRESS.get(server.host, server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{server.port}"


async def call_gateway(
    settings: Settings, key: str, model: str, prompt: str, *, timeout_s: float
) -> AsyncGenerator[Opened | Piece, None]:
    """Yields one `Opened`, and then the pieces of the gateway's response. Raises Unavailable if the
    gateway cannot be reached, sends nothing for `timeout_s` seconds, or is not a gateway."""
    url = gateway_url(settings)
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    # In a thread, because the connection reads the certificates of the system.
    connection = await asyncio.to_thread(_connection, url, timeout_s)
    try:
        await asyncio.to_thread(
            connection.request,
            *("POST", f"{urlsplit(url).path}/v1/chat/completions", json.dumps(body), headers),
        )
        answer = await asyncio.to_thread(connection.getresponse)
        request_id = answer.getheader("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            raise Unavailable(
                f"The server at {url} is not a gateway, or a proxy answered for the gateway: the "
                f"response has the status {answer.status} and no request id. Check "
                "console.gateway_url."
            )
        yield Opened(request_id, answer.status)
        if answer.status != http.client.OK:
            yield Piece(_message(await asyncio.to_thread(answer.read, _LINE_BYTES_MAX)))
            return
        while line := await asyncio.to_thread(answer.readline, _LINE_BYTES_MAX):
            if line.startswith(b"data: {"):
                yield Piece(_text(line))
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise Unavailable(
            f"The gateway at {url} does not answer: {str(exc) or type(exc).__name__}"
        ) from exc
    finally:
        connection.close()


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Returns a connection that is opened by its first request. With https, the connection accepts
    only certificates of the system's certificate authorities."""
    parts = urlsplit(url)
    assert parts.hostname is not None, "the settings have checked the address"
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s)


def _text(line: bytes) -> str:
    record = json.loads(line.removeprefix(b"data: "))
    if "error" in record:
        return str(record["error"].get("message", ""))
    return "".join(choice["delta"].get("content") or "" for choice in record.get("choices", ()))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "The gateway refused the call."
