"""Runs a gateway in front of a backend with two replicas that play the same script, for each wire."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from tests.support.constants import backend_constants
from tests.support.scripted_gateway import Entry, ScriptedGateway, eventually, scripted_gateway
from tests.support.upstream import Upstream, Verb, chat
from tests.support.upstream_converse import converse, invoke
from tests.support.upstream_gemini import generate
from tests.support.upstream_messages import message
from tests.support.upstream_responses import respond

ANSWER_BYTES_MAX = 4096
# By wire: the verb that a replica plays in an ordinary call.
ORDINARY: dict[str, Callable[[], Verb]] = {
    "chat": chat,
    "responses": respond,
    "messages": message,
    "gemini": generate,
    "converse": converse,
    "bedrock_messages": invoke,
}


@dataclass(frozen=True)
class TwoReplicas:
    """Contains a gateway with one backend of two replicas, which are never ejected."""

    scripted: ScriptedGateway
    replicas: tuple[Upstream, Upstream]

    async def with_tenant(self) -> "TwoReplicas":
        """Returns the same gateway for a new tenant with credit."""
        return replace(self, scripted=await self.scripted.with_tenant())

    def play(self, verb: Verb) -> None:
        for replica in self.replicas:
            replica.play(verb)

    @property
    def calls(self) -> int:
        return sum(len(replica.requests) for replica in self.replicas)

    @property
    def under_way(self) -> int:
        return sum(replica.under_way for replica in self.replicas)

    async def fail(self, verb: Verb, **fields: Any) -> tuple[httpx2.Response, int]:
        """Makes a call while both replicas play `verb`. Returns the answer and the number of requests."""
        before = self.calls
        self.play(verb)
        found = await self.scripted.chat(**fields)
        return found, self.calls - before

    async def entry_after_the_caller_left(self) -> Entry:
        await eventually(lambda: self.scripted.gateway.services.inference.running == 0)
        await self.scripted.balance()
        (entry,) = await self.scripted.entries()
        return entry


@asynccontextmanager
async def two_replicas(
    data_dir: Path, conninfo: str, wire: str, **changes: Any
) -> AsyncIterator[TwoReplicas]:
    ordinary = ORDINARY[wire]
    backend = {
        "protocol": wire,
        # A token count would be a request to a replica too.
        "tokenize_path": "none",
        "retries": 1,
    }
    async with Upstream(ordinary()) as one, Upstream(ordinary()) as two:
        urls = (one.url, two.url)
        async with scripted_gateway(
            *(data_dir, conninfo, one),
            urls=urls,
            ordinary=ordinary,
            backend=backend,
            **changes,
            changed_constants=backend_constants(
                failures_to_eject=1_000_000, body_bytes_max=ANSWER_BYTES_MAX
            ),
        ) as scripted:
            yield TwoReplicas(scripted, (one, two))


@asynccontextmanager
async def for_each_wire(
    data_dir: Path,
    conninfo: str,
    wires: Iterable[str] = ("chat", "responses"),
    **changes: Any,
) -> AsyncIterator[dict[str, TwoReplicas]]:
    async with AsyncExitStack() as stack:
        yield {
            wire: await stack.enter_async_context(two_replicas(data_dir, conninfo, wire, **changes))
            for wire in wires
        }


async def assert_unsettled(two: TwoReplicas, found: httpx2.Response, asked: int) -> None:
    """Checks that the whole hold stays, that only one replica was asked, and that SDKs do not retry."""
    assert asked == 1
    assert found.headers["x-should-retry"] == "false"
    entry = await two.scripted.entry_of(found)
    assert (entry.status, entry.cost) == ("unsettled", 0)
    assert entry.reason
    assert (await two.scripted.balance())["unsettled"] == entry.hold


async def assert_released(two: TwoReplicas, found: httpx2.Response, asked: int) -> None:
    """Checks that both replicas were asked, and that the hold was released."""
    assert asked == 2
    assert "x-should-retry" not in found.headers
    assert (await two.scripted.entry_of(found)).status == "released"
