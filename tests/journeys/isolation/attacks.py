"""Attacks of a hostile tenant. Each is a context manager, and the attack lasts as long as its block.

`by_words` is the model server behind the gateway. The words of a prompt decide what it does, so that the
calls of one tenant can fail or hang while the calls of another are answered.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import httpx2

from tests.support.judged_gateway import Asked, JudgedGateway, Opinion, judge_answer
from tests.support.raw_caller import RawCaller, raw_caller
from tests.support.scripted_gateway import chat_body
from tests.support.upstream import Peer, chat, chunk, hang, refuse, sse

Attack = Callable[[JudgedGateway, int], AbstractAsyncContextManager[None]]

# One record of a stream without end, about a kilobyte.
_POURED = sse(chunk("pour " * 200))


def by_words() -> "Callable[[Peer], Awaitable[None]]":
    async def verb(peer: Peer) -> None:
        said = peer.request.body
        if b"poison" in said:
            await refuse(500)(peer)
        elif b"hang" in said:
            await hang()(peer)
        elif b"pour" in said:
            await peer.send_head()
            while not peer.left:
                await peer.send_chunk(_POURED)
                await asyncio.sleep(0)
        else:
            await chat()(peer)

    return verb


def judge_by_words(asked: Asked) -> Opinion:
    """Answers slowly, and never answers a question about a text that contains "stall"."""
    if "stall" in asked.text:
        return hang()

    async def slowly(peer: Peer) -> None:
        await asyncio.sleep(0.01)
        await judge_answer(0)(peer)

    return slowly


@asynccontextmanager
async def _storm(
    step: Callable[[], Awaitable[object]], workers: int, *, ends_by_itself: bool = False
) -> AsyncIterator[None]:
    """Repeats the step in `workers` tasks at once. Every task has begun when the block begins. At the end
    of the block, the tasks are cancelled unless the step ends by itself."""

    begun = asyncio.Semaphore(0)
    over = False

    async def work() -> None:
        begun.release()
        while not over:
            await step()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    try:
        for _ in range(workers):
            await begun.acquire()
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
        yield
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
    finally:
        over = True
        for task in () if ends_by_itself else tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _calls(
    hostile: JudgedGateway, text: str, workers: int, *, pause_s: float = 0
) -> AsyncIterator[None]:
    """Makes calls in `workers` tasks. Each task waits `pause_s` seconds after an answer. Attacker and
    gateway share one event loop here, so calls that are refused at once need a pause to leave it time."""
    numbers = itertools.count()
    async with hostile.scripted.another_client() as client:

        async def step() -> None:
            messages = [{"role": "user", "content": f"{text} {next(numbers)}"}]
            # After the timeout of a call that never ends, make the next call.
            with contextlib.suppress(httpx2.TimeoutException):
                await client.chat(messages=messages)
            await asyncio.sleep(pause_s)

        async with _storm(step, workers):
            yield


def poisons(hostile: JudgedGateway, size: int) -> AbstractAsyncContextManager[None]:
    """Makes calls that fail at the model server."""
    return _calls(hostile, "poison", 4 * size)


def hangs(hostile: JudgedGateway, size: int) -> AbstractAsyncContextManager[None]:
    """Makes calls that never end: more than the gateway allows calls and connections."""
    return _calls(hostile, "hang", 70 + 10 * size, pause_s=0.2)


@asynccontextmanager
async def floods_the_judge(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    await hostile.enforce("bomb", direction="request")
    async with _calls(hostile, "flood", 16 * size):
        yield


@asynccontextmanager
async def stalls_the_judge(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Makes calls whose questions the judge never answers, so that they exceed its deadline."""
    await hostile.enforce("bomb", direction="request")
    async with _calls(hostile, "stall", 16 * size):
        yield


@asynccontextmanager
async def hammers_its_account(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Makes calls without credit, each of which the ledger refuses."""
    broke = JudgedGateway(await hostile.scripted.with_tenant(credit=0), hostile.judge)
    async with _calls(broke, "broke", 16 * size):
        yield


@asynccontextmanager
async def sends_nonsense(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    async with hostile.scripted.another_client() as client:
        wrong = json.dumps(chat_body(messages=[{"role": "nobody"}] * 100)).encode()
        async with _storm(lambda: client.send(wrong), 4 * size):
            yield


@asynccontextmanager
async def asks_for_nothing(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Sends requests without a key to an unknown path, over many connections."""
    async with AsyncExitStack() as stack:
        callers = [
            await stack.enter_async_context(raw_caller(hostile.scripted)) for _ in range(50 * size)
        ]
        idle = asyncio.Queue[RawCaller]()
        for caller in callers:
            idle.put_nowait(caller)

        async def step() -> None:
            caller = await idle.get()
            await caller.send(b"GET /v1/nothing HTTP/1.1\r\nHost: gateway\r\n\r\n")
            await caller.answer()
            idle.put_nowait(caller)

        async with _storm(step, len(callers), ends_by_itself=True):
            yield


@asynccontextmanager
async def administers(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Lists keys and creates policies as fast as the gateway answers."""
    async with hostile.scripted.another_client() as client:

        async def step() -> None:
            await client.gateway.make_policy(client.tenant)
            await client.gateway.client.get(
                "/v1/organization/admin_api_keys", headers=client.tenant.as_admin
            )

        async with _storm(step, 8 * size, ends_by_itself=True):
            yield


@asynccontextmanager
async def reads_nothing(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Asks for streams without end, and never reads them."""
    async with AsyncExitStack() as stack:
        for _ in range(8 * size):
            caller = await stack.enter_async_context(raw_caller(hostile.scripted))
            await caller.ask(
                messages=[{"role": "user", "content": "pour"}], stream=True, max_tokens=2048
            )
        await asyncio.sleep(0.1)
        yield


@asynccontextmanager
async def idles(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Opens connections that never send a request."""
    async with AsyncExitStack() as stack:
        for _ in range(100 * size):
            await stack.enter_async_context(raw_caller(hostile.scripted))
        yield


@asynccontextmanager
async def comes_and_goes(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Resets connections in the middle of a request or of an answer."""
    turns = itertools.cycle([0.5, 1.0])

    async def step() -> None:
        async with raw_caller(hostile.scripted) as caller:
            sent = next(turns)
            await caller.ask(sent=sent, stream=True)
            if sent == 1.0:
                await caller.head()
            caller.leave(abruptly=True)

    async with _storm(step, 4 * size, ends_by_itself=True):
        yield


ATTACKS: dict[str, Attack] = {
    "poisons a replica": poisons,
    "holds calls and connections": hangs,
    "floods the judge": floods_the_judge,
    "stalls the judge": stalls_the_judge,
    "hammers its own account": hammers_its_account,
    "sends nonsense": sends_nonsense,
    "asks for nothing": asks_for_nothing,
    "administers": administers,
    "reads nothing": reads_nothing,
    "idles": idles,
    "comes and goes": comes_and_goes,
}
