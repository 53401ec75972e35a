"""Serves a model with little CPU: it sends fixed answers from memory, as JSON or as a stream.

The model's name selects the pace of a stream. The first piece is always sent at once.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop

# The names of the models: for load, for the time to the first byte, for streams that stay open for
# long, for streams that send nothing after their first piece, and for streams whose pieces do not
# arrive together.
PACED, BRIEF, HELD, SILENT = "bench", "bench-brief", "bench-held", "bench-silent"
SPACED = "bench-spaced"
PIECES = 200
# The first bytes of a client that tries HTTP/2.
_HTTP2_PREFACE = b"PRI * HTTP/2.0"
_USAGE = {"prompt_tokens": 180, "completion_tokens": 64, "total_tokens": 244}
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * 64},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": _USAGE,
    }
).encode()
JSON_RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(_ANSWER)
) + _ANSWER
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Pace:
    pieces: int
    interval_s: float


PACES = {
    PACED: Pace(PIECES, 0.004),
    BRIEF: Pace(3, 0.004),
    HELD: Pace(PIECES, 0.1),
    SILENT: Pace(2, 3600),
    SPACED: Pace(100, 0.02),
}


def _chunk(record: object) -> bytes:
    data = (
        b"data: " + (record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n\n"
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


def _piece(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "bench",
    }
    return _chunk({**head, "choices": [choice]})


# All pieces differ, because a gateway may treat a model that repeats itself as broken.
_PIECES = [_piece({"content": f"word{number} "}) for number in range(PIECES)]
_LAST = (
    _piece({}, "stop")
    + _chunk(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "bench",
            "choices": [],
            "usage": _USAGE,
        }
    )
    + _chunk(b"[DONE]")
    + b"0\r\n\r\n"
)


def piece(text: str) -> bytes:
    return _piece({"content": text})


class Upstream(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        if data.startswith(_HTTP2_PREFACE):
            self._transport.close()
            return
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body.replace(b" ", b""), b""
        if b'"stream":true' not in body:
            self._transport.write(JSON_RESPONSE)
            return
        named = (pace for model, pace in PACES.items() if f'"model":"{model}"'.encode() in body)
        self._pace = next(named, PACES[PACED])
        self._sent = 0
        self._transport.write(STREAM_HEAD)
        self._next_piece()

    def _next_piece(self) -> None:
        if self._transport.is_closing():
            return
        if self._sent == self._pace.pieces:
            self._transport.write(_LAST)
            return
        self._transport.write(_PIECES[self._sent])
        self._sent += 1
        asyncio.get_running_loop().call_later(self._pace.interval_s, self._next_piece)


async def serve(port: int, kind: type[Upstream] = Upstream) -> None:
    server = await asyncio.get_running_loop().create_server(kind, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def serving_upstream(module: str = "bench.upstream") -> Iterator[int]:
    """Runs the upstream in a separate process, and yields its port."""
    with subprocess.Popen([sys.executable, "-m", module], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(serve(parser.parse_args().port))
