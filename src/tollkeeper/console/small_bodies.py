"""Reads the bodies of unauthenticated requests, with limits on their size, time and number."""

import asyncio
from collections import OrderedDict

from starlette.requests import Request

from tollkeeper.console.guard import BodyTooLarge

BODY_BYTES_MAX = 256 * 1024
# The maximum number of bodies that are read at the same time.
READING_MAX = 64
_DEADLINE_S = 10.0


class SmallBodies:
    """Reads bodies concurrently. If `READING_MAX` bodies are being read, reading another body
    cancels the read that began first. A deliberately slow read becomes the oldest, so slow senders
    cannot block other senders."""

    def __init__(self) -> None:
        self._reading: OrderedDict[asyncio.Timeout, None] = OrderedDict()

    async def read(self, request: Request) -> bytes:
        """Reads one body. Raises BodyTooLarge, or TimeoutError if the read takes too long or is
        cancelled."""
        body = bytearray()
        async with asyncio.timeout(_DEADLINE_S) as timeout:
            if len(self._reading) >= READING_MAX:
                # A deadline in the past cancels the oldest read at once.
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
