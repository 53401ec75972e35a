"""Reads the bodies of requests without a session (sign-ins and payment events), with limits on their size,
time and number."""

from starlette.requests import Request

from tollkeeper.console.places import Places, network_of_client

BODY_BYTES_MAX = 256 * 1024
# The maximum number of bodies that are read at the same time.
READING_MAX = 64
_DEADLINE_S = 10.0


class BodyTooLarge(Exception):
    """Signals a request body that is larger than the limit."""


class BodyTooSlow(Exception):
    """Signals a body that took too long, or had to make room for another one."""


class SmallBodies:
    """Reads bodies concurrently."""

    def __init__(self) -> None:
        self._reading = Places()

    async def read(self, request: Request) -> bytes:
        """Reads one body. Raises BodyTooLarge, BodyTooSlow or Starlette's ClientDisconnect."""
        if int(request.headers.get("content-length", "0")) > BODY_BYTES_MAX:
            raise BodyTooLarge
        body, network = bytearray(), network_of_client(request)
        place = self._reading.take(network, places_max=READING_MAX, deadline_s=_DEADLINE_S)
        try:
            async with place:
                async for piece in request.stream():
                    body += piece
                    if len(body) > BODY_BYTES_MAX:
                        raise BodyTooLarge
        except TimeoutError:
            raise BodyTooSlow from None
        return bytes(body)
