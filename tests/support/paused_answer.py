"""Plays an upstream whose answers do not end until a test allows it."""

import asyncio
from typing import Any

from tests.support.upstream import DONE, USAGE, Peer, Verb, chunk, sse, usage_chunk


class PausedAnswer:
    def __init__(self, usage: Any = USAGE) -> None:
        self._usage = usage
        # Set by the test to end the answers.
        self.may_end = asyncio.Event()
        # Set if the gateway has closed the connection before the end.
        self.closed = asyncio.Event()

    def verb(self, pieces: int = 2) -> Verb:
        """Sends this many pieces at once, and the end of the answer when `may_end` is set."""

        async def play(peer: Peer) -> None:
            await peer.send_head()
            for number in range(pieces):
                await peer.send_chunk(sse(chunk(f"{number} ")))
            leaving = asyncio.ensure_future(peer.until_left())
            ending = asyncio.ensure_future(self.may_end.wait())
            await asyncio.wait({leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if leaving.done():
                self.closed.set()
                return
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            for record in (sse(chunk(finish="stop")), sse(usage_chunk(self._usage)), DONE):
                await peer.send_chunk(record)
            await peer.end_chunks()

        return play
