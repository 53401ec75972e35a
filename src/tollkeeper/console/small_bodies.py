"""Reads the bodies of unauthenticated requests within limits of size, time and number."""

import asyncio
from collections import OrderedDict

from starlette.requests import Request

from tollkeeper.console.guard import BodyTooLarge

BODY_BYTES_MAX = 256 * 1024
READING_MAX = 64
_DEADLINE_S = 10.0


class SmallBodies:
    """If too many bodies are being read, the oldest one is cancelled. A deliberately slow sender is
    the oldest, so it cannot block others."""

    def __init__(self) -> None:
        self._reading: OrderedDict[asyncio.Timeout, None] = OrderedDict()

    async def read(self, request: Request) -> bytes:
        """Reads one body. Raises TimeoutError or BodyTooLarge."""
        body = bytearray()
        async with asyncio.timeout(_DEADLINE_S) as timeout:
            if len(self._reading) >= READING_MAX:
                self._reading.popitem(last=False)[0].reschedule(0)
            self._reading[timeout] = None
            try:
                async for piece in request.stream():
                    body += piece
                    if len(body) > BODY_BYTES_MAX:
                        raise BodyTooLarge
            finally:
                self._reading.pop(timeout, None)
        return bytes(body)
