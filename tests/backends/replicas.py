"""Several upstreams as the replicas of one backend."""

from contextlib import AsyncExitStack

from tests.support.upstream import Upstream, Verb


async def upstreams(stack: AsyncExitStack, count: int, verb: Verb) -> list[Upstream]:
    return [await stack.enter_async_context(Upstream(verb)) for _ in range(count)]


def calls_of(*servers: Upstream) -> list[int]:
    return [len(server.requests) for server in servers]
