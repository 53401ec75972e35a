"""Sends one streamed chat request to the gateway, as a tenant's program would."""

import asyncio
import http.client
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tollkeeper.domain.errors import Unavailable
from tollkeeper.settings import Settings

# The address to connect to if the gateway listens on all addresses.
_LOOPBACK_OF_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, and not listened on
_LINE_BYTES_MAX = 1_000_000


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


async def call_gateway(
    settings: Settings, key: str, model: str, prompt: str, *, timeout_s: float
) -> AsyncGenerator[Opened | Piece, None]:
    """Yields one `Opened`, and then the pieces of the gateway's response. Raises Unavailable if the
    gateway cannot be reached, or sends nothing for `timeout_s` seconds."""
    server = settings.server
    host = _LOOPBACK_OF_ANY_ADDRESS.get(server.host, server.host)
    connection = http.client.HTTPConnection(host, server.port, timeout=timeout_s)
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        await asyncio.to_thread(
            connection.request, "POST", "/v1/chat/completions", json.dumps(body), headers
        )
        answer = await asyncio.to_thread(connection.getresponse)
        yield Opened(answer.getheader("x-request-id", ""), answer.status)
        if answer.status != http.client.OK:
            yield Piece(_message(await asyncio.to_thread(answer.read, _LINE_BYTES_MAX)))
            return
        while line := await asyncio.to_thread(answer.readline, _LINE_BYTES_MAX):
            if line.startswith(b"data: {"):
                yield Piece(_text(line))
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise Unavailable(
            f"The gateway at {host}:{server.port} does not answer: {str(exc) or type(exc).__name__}"
        ) from exc
    finally:
        connection.close()


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
