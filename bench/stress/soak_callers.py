"""Runs the clients of the soak: with JSON answers, streams, provoked faults, and early disconnects."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence

from bench.figures import CHAT_PATH
from bench.gateway import MODELS, Tenant
from bench.load import request_bytes
from bench.stress.faulty_upstream import CUTS, FAILS, STALLS
from bench.stress.open_loop import Answer
from bench.upstream import BRIEF, PACED

_PAUSE_S_MAX = 0.4
_LEAVES_AFTER_S_MAX = 0.3
# Longer than the deadline of a call.
_ANSWER_WITHIN_S = 60.0
# The kinds of requests, with their shares in percent.
_KINDS = {
    "whole": 40,
    "stream": 30,
    "long stream": 6,
    "fails": 8,
    "is cut": 6,
    "stalls": 2,
    "leaves": 8,
}
_WORDS = {"fails": FAILS, "is cut": CUTS, "stalls": STALLS}


class Callers:
    """Clients that send random requests over their own connections until `stopping` is set."""

    def __init__(self, port: int, tenants: Sequence[Tenant], seed: int) -> None:
        self._port = port
        self._tenants = tenants
        self._random = random.Random(seed)
        self.stopping = asyncio.Event()
        # The number of requests by kind and status. 0 means that there was no complete answer.
        self.statuses: Counter[tuple[str, int]] = Counter()

    async def run(self, callers: int) -> None:
        await asyncio.gather(*(self._call() for _ in range(callers)))

    async def _call(self) -> None:
        connection: Answer | None = None
        while not self.stopping.is_set():
            kind = self._random.choices(list(_KINDS), list(_KINDS.values()))[0]
            request = self._request(kind)
            try:
                if connection is None or connection.transport.is_closing():
                    connection = await self._connect()
                status = await self._ask(connection, kind, request)
            except OSError:
                status, connection = 0, None
            self.statuses[kind, status] += 1
            if kind == "leaves" and connection is not None:
                connection.transport.abort()
                connection = None
            await asyncio.sleep(self._random.uniform(0, _PAUSE_S_MAX))
        if connection is not None:
            connection.transport.close()

    async def _connect(self) -> Answer:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Answer, "127.0.0.1", self._port)
        return connection

    async def _ask(self, connection: Answer, kind: str, request: bytes) -> int:
        patience_s = _ANSWER_WITHIN_S
        if kind == "leaves":
            patience_s = self._random.uniform(0, _LEAVES_AFTER_S_MAX)
        try:
            async with asyncio.timeout(patience_s):
                status, _ = await connection.ask(request)
                return status
        except TimeoutError:
            connection.transport.abort()
            return 0

    def _request(self, kind: str) -> bytes:
        tenant = self._random.choice(self._tenants)
        model = PACED if kind in ("long stream", "leaves", "whole") else BRIEF
        body = {
            "model": MODELS[model],
            "messages": [{"role": "user", "content": f"Hello. {_WORDS.get(kind, '')}"}],
            "max_tokens": 256,
            "stream": kind != "whole",
        }
        headers = {"authorization": f"Bearer {tenant.key}"}
        return request_bytes(CHAT_PATH, headers, json.dumps(body).encode())
