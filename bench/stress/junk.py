"""`python -m bench.stress.junk PORT CONNECTIONS`: requests a path that does not exist, until it is stopped.

Each connection sends its next request when it has the answer to the last request. This is a separate
program, because it uses a whole core and would slow down the process that measures.
"""

import asyncio
import sys
from typing import cast

import uvloop

_REQUEST = b"GET /v1/nothing HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer nobody\r\n\r\n"
# The end of an error's JSON.
_ANSWER_END = b"}}"


class _Asker(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        if data.endswith(_ANSWER_END):
            self._transport.write(_REQUEST)


async def _ask(port: int, connections: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(_Asker, "127.0.0.1", port)
    print("asking", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_ask(int(sys.argv[1]), int(sys.argv[2])))
