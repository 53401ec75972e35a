"""What a hostile tenant does, each as a context in which it goes on doing it.

`by_words` is the model server behind the gateway: it does what the words of a prompt tell it, so that
one tenant's calls can fail or hang while another's are answered.
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

# A network read of the gateway may take so much of a stream at once; a slow reader gets far more.
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
    """Hears everybody slowly, and never answers a question about a text that stalls."""
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
    """Runs the step again and again, by so many workers at once. Every worker has begun when the
    block begins. A step that ends by itself is not cut off at the end."""

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
    """`pause_s` is how long a worker waits after an answer. Attacker and gateway share one event
    loop here, so calls that are refused at once need a pause to be more than a busy loop."""
    numbers = itertools.count()
    async with hostile.scripted.another_client() as client:

        async def step() -> None:
            messages = [{"role": "user", "content": f"{text} {next(numbers)}"}]
            # Who loses patience with a call that never ends makes the next one.
            with contextlib.suppress(httpx2.TimeoutException):
                await client.chat(messages=messages)
            await asyncio.sleep(pause_s)

        async with _storm(step, workers):
            yield


def poisons(hostile: JudgedGateway, size: int) -> AbstractAsyncContextManager[None]:
    """Calls that the model server fails at."""
    return _calls(hostile, "poison", 4 * size)


def hangs(hostile: JudgedGateway, size: int) -> AbstractAsyncContextManager[None]:
    """Calls that never end: more than there are connections, and places for calls."""
    return _calls(hostile, "hang", 70 + 10 * size, pause_s=0.2)


@asynccontextmanager
async def floods_the_judge(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    await hostile.enforce("bomb", direction="request")
    async with _calls(hostile, "flood", 16 * size):
        yield


@asynccontextmanager
async def stalls_the_judge(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Texts that the judge never comes to an end with: their questions run out of their time."""
    await hostile.enforce("bomb", direction="request")
    async with _calls(hostile, "stall", 16 * size):
        yield


@asynccontextmanager
async def hammers_its_account(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Calls without credit: each is decided on by the ledger."""
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
    """Requests that are refused at first sight, over many connections."""
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
    """Lists its keys and writes policies as fast as it is answered."""
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
    """Streams that pour, to callers who never read."""
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
    """Connections that never ask for anything."""
    async with AsyncExitStack() as stack:
        for _ in range(100 * size):
            await stack.enter_async_context(raw_caller(hostile.scripted))
        yield


@asynccontextmanager
async def comes_and_goes(hostile: JudgedGateway, size: int) -> AsyncIterator[None]:
    """Connections that break off within a request or within an answer."""
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
