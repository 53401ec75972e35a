"""The program of the bridge's process: serves the backends that its handshake names.

The parent writes one line of JSON to standard input, with the keys, and keeps the pipe open: when
the pipe ends, this program ends. When the backends are ready, it writes one line of JSON to standard
output, with what became of each of them.
"""

import asyncio
import json
import logging
import os
import sys
import warnings
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import unquote

from tollkeeper.embedded.bridge.chat_json import ChunkOrder, whole_answer
from tollkeeper.embedded.bridge.failures import NOT_SENT, UNKNOWN, Failure
from tollkeeper.embedded.bridge.http_server import Answer, BridgeServer, Request
from tollkeeper.embedded.bridge.provider import (
    DeclaredBackend,
    Provider,
    Refused,
    library_version,
)
from tollkeeper.embedded.parent_watch import (
    end_with_parent,
    forbid_core_dumps,
    redirected_standard_output,
)

_HOST = "127.0.0.1"
_HEALTH_PATH = "/health"
_CALL_PATH_END = "/v1/chat/completions"
_DONE = b"data: [DONE]\n\n"


class Bridge:
    """Makes a call of each request, and no more at once than it may."""

    def __init__(
        self, backends: list[DeclaredBackend], *, calls_max: int, timeout_s: float
    ) -> None:
        self._calls_max = calls_max
        self._calls = 0
        self._providers: dict[str, Provider] = {}
        # Of each backend that cannot be used: why.
        self.refused: dict[str, str] = {}
        for declared in backends:
            try:
                self._providers[declared.name] = Provider(declared, timeout_s=timeout_s)
            except Refused as exc:
                self.refused[declared.name] = str(exc)

    async def handle(self, request: Request) -> Answer:
        if request.path == _HEALTH_PATH:
            return Answer(document={"calls": self._calls})
        name = unquote(request.path.removesuffix(_CALL_PATH_END).removeprefix("/"))
        provider = self._providers.get(name)
        if provider is None or not request.path.endswith(_CALL_PATH_END):
            reason = self.refused.get(name, "There is no such backend.")
            return _refusal(Failure(503, reason))
        if self._calls >= self._calls_max:
            return _refusal(Failure(503, "The bridge makes as many calls as it may."))
        body = json.loads(request.body)
        try:
            if body.get("stream"):
                return await self._begin_stream(provider, body)
            return await self._complete(provider, body)
        except Exception as exc:  # noqa: BLE001 - the library and its SDKs raise anything
            return _refusal(provider.failure_of(exc))

    async def _complete(self, provider: Provider, body: dict[str, Any]) -> Answer:
        self._calls += 1
        try:
            answer = await provider.complete(body["model"], body)
        finally:
            self._calls -= 1
        return Answer(document=whole_answer(answer))

    async def _begin_stream(self, provider: Provider, body: dict[str, Any]) -> Answer:
        """Waits for the first chunk, so that a refusal has a status of its own."""
        chunks = provider.stream(body["model"], body)
        self._calls += 1
        try:
            first = await anext(chunks)
        except StopAsyncIteration:
            self._calls -= 1
            return _refusal(Failure(UNKNOWN, "The provider's answer is empty."))
        except BaseException:
            self._calls -= 1
            raise
        return Answer(records=self._records(provider, first, chunks))

    async def _records(
        self, provider: Provider, first: dict[str, Any], chunks: AsyncIterator[dict[str, Any]]
    ) -> AsyncIterator[bytes]:
        order = ChunkOrder()
        try:
            yield _record(order.chunk(first))
            async for chunk in chunks:
                yield _record(order.chunk(chunk))
            last = order.last_chunk()
            if last is not None:
                yield _record(last)
            yield _DONE
        except Exception as exc:
            failure = provider.failure_of(exc)
            if failure.status in (UNKNOWN, NOT_SENT):
                # The call may have been charged: the stream breaks off without an error, as the provider's did.
                raise ConnectionAbortedError from exc
            yield _record(failure.body())
        finally:
            self._calls -= 1
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()


def _refusal(failure: Failure) -> Answer:
    headers = {}
    if failure.retry_after_s is not None:
        headers["retry-after"] = str(failure.retry_after_s)
    return Answer(failure.status, failure.body(), headers=headers)


def _record(document: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(document).encode()


async def _serve(handshake: Mapping[str, Any], report: int) -> None:
    backends = [DeclaredBackend(**declared) for declared in handshake["backends"]]
    bridge = Bridge(backends, calls_max=handshake["calls_max"], timeout_s=handshake["timeout_s"])
    server = await BridgeServer(bridge.handle, handshake["api_key"]).listen(
        _HOST, handshake["port"]
    )
    ready = {"library": library_version(), "refused": bridge.refused}
    os.write(report, json.dumps(ready).encode() + b"\n")
    async with server:
        await server.serve_forever()


def _be_silent() -> None:
    """No line of the library or of an SDK is written anywhere: it may quote a request or a key."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def main() -> None:
    handshake = json.loads(sys.stdin.buffer.readline())
    end_with_parent(handshake["parent_pid"])
    forbid_core_dumps()
    report = redirected_standard_output()
    _be_silent()
    asyncio.run(_serve(handshake, report))


if __name__ == "__main__":
    main()
