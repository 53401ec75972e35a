"""Runs trials with many calls: races for a budget, a killed gateway and a restarted database."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2

from bench.billing.request import Request
from bench.billing.result import TrialResult
from bench.billing.scenarios import FAULT_SOURCES, call_cost
from bench.billing.truth import cite
from bench.billing.upstream import Provider, TrialAnswer

CARD = "standard"
_PROMPT, _COMPLETION = 1000, 200
COST = call_cost(CARD, _PROMPT, _COMPLETION).usd
_CALL_WITHIN_S = 60
_PAUSE_S = 0.05
_RECOVERED_WITHIN_S = 300
# In a race, the provider answers when no call has arrived for this time. All calls that a gateway
# admits at once thus overlap, even on a slow machine.
_QUIET_S = 2.0


@dataclass(frozen=True)
class Trial:
    name: str
    kind: str
    calls: int
    # The rule by which the provider bills the calls.
    source: str
    # The number of calls that the budget can pay.
    budget_calls: int | None = None
    processes: int = 1

    @property
    def budget(self) -> Decimal | None:
        assert COST is not None
        return None if self.budget_calls is None else self.budget_calls * COST


def load_trials() -> list[Trial]:
    written = json.loads((Path(__file__).parent / "trials.json").read_text())
    return [Trial(**trial | {"source": cite(FAULT_SOURCES[trial["source"]])}) for trial in written]


def processes_of(trials: list[Trial]) -> int:
    """Return the number of processes with which a gateway has to run."""
    return max((trial.processes for trial in trials), default=1)


@dataclass(frozen=True)
class TrialBooks:
    """The gateway's bookings for one trial."""

    # The sum of the final amounts.
    usd: Decimal
    # The number of calls that the gateway marks as unsettled, estimated or failed.
    marked: int


@dataclass(frozen=True)
class Made:
    """The calls that the client of a trial has made."""

    calls: int
    # The calls during the outage of the database, and those of them that were answered.
    in_outage: int = 0
    answered_in_outage: int = 0


@dataclass(frozen=True)
class Client:
    """A client with its own budget, if the trial has one."""

    # The addresses at which the client can call the gateway, each as a request.
    requests: list[Request]
    # Waits for the gateway's accounting of this number of billed calls, and returns its bookings.
    books: Callable[[int], Awaitable[TrialBooks]]


class OnTrial(ABC):
    """The actions of a trial on a running gateway."""

    @abstractmethod
    async def client(self, trial: Trial) -> Client:
        """Create a client with the trial's budget. Its model has the trial's name."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the gateway without a warning, and start it again."""

    @abstractmethod
    async def restart_database(self) -> None:
        """Kill the database's server, and start it again."""


def ask() -> dict[str, Any]:
    """Return the request body. If a gateway holds the highest possible cost, this is the actual cost."""
    text = "The tenant pays the rent. " * 160
    return {"messages": [{"role": "user", "content": text}], "max_tokens": _COMPLETION}


def _answer() -> dict[str, Any]:
    message = {"role": "assistant", "content": "The tenant pays."}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1790000000,
        "model": "trial",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": _PROMPT,
            "completion_tokens": _COMPLETION,
            "total_tokens": _PROMPT + _COMPLETION,
        },
    }


async def run_trial(session: OnTrial, provider: Provider, trial: Trial) -> TrialResult:
    """Run one trial. The provider bills every answer that it sent. If the gateway is killed during calls,
    the provider bills every call that it received."""
    answers = trial.calls // 2 if trial.kind == "kill_during" else None
    quiet_s = _QUIET_S if trial.kind == "race" else 0.0
    provider.trials[trial.name] = TrialAnswer(_answer(), quiet_s, answers)
    running = Running(session, provider, await session.client(trial), trial)
    async with _http() as http:
        made = await _RUNS[trial.kind](http, running)
    answered = provider.answered[trial.name]
    billed = len(provider.calls[trial.name]) if trial.kind == "kill_during" else answered
    books = await running.client.books(billed)
    assert COST is not None
    return TrialResult(
        trial=trial.name,
        true=billed * COST,
        booked=books.usd,
        budget=trial.budget,
        calls=made.calls,
        answered=answered,
        marked=books.marked,
        marked_usd=books.marked * COST,
        in_outage=made.in_outage,
        answered_in_outage=made.answered_in_outage,
    )


@dataclass(frozen=True)
class Running:
    """A trial that runs."""

    session: OnTrial
    provider: Provider
    client: Client
    trial: Trial

    @property
    def request(self) -> Request:
        return self.client.requests[0]


@asynccontextmanager
async def _http() -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=_CALL_WITHIN_S, verify=False, limits=limits) as client:
        yield client


async def _call(http: httpx2.AsyncClient, request: Request) -> int:
    try:
        answer = await http.post(request.url, headers=request.headers, json=request.body)
    except httpx2.HTTPError:
        return 0
    return answer.status_code


async def _race(http: httpx2.AsyncClient, running: Running) -> Made:
    """Send all calls at once, to each process in turn. Then send calls one by one until one is rejected."""
    requests, number = running.client.requests, running.trial.calls
    calls = (_call(http, requests[position % len(requests)]) for position in range(number))
    await asyncio.gather(*calls)
    for _ in range(number):
        if await _call(http, running.request) != 200:
            break
    return Made(number)


async def _kill(http: httpx2.AsyncClient, running: Running) -> Made:
    """Send calls one after another, and kill the gateway as soon as the last call is answered."""
    for _ in range(running.trial.calls):
        await _call(http, running.request)
    await running.session.kill()
    return Made(running.trial.calls)


async def _kill_during(http: httpx2.AsyncClient, running: Running) -> Made:
    """Send calls at once. Kill the gateway when half of them are answered, a stream has begun, and the
    provider works on the others."""
    trial, provider = running.trial, running.provider
    answers = provider.trials[trial.name].answers
    assert answers is not None
    calls = [asyncio.create_task(_call(http, running.request)) for _ in range(trial.calls - 1)]
    waiting = set(calls)
    async with asyncio.timeout(_CALL_WITHIN_S):
        while len(calls) - len(waiting) < answers:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        body = {**running.request.body, "stream": True}
        request = replace(running.request, body=body)
        begun = asyncio.Event()
        calls.append(asyncio.create_task(_stream(http, request, begun)))
        await begun.wait()
        await provider.until_called(trial.name, trial.calls)
    await running.session.kill()
    await asyncio.gather(*calls)
    return Made(trial.calls)


async def _stream(http: httpx2.AsyncClient, request: Request, begun: asyncio.Event) -> int:
    """Read a stream to its end, and report its first bytes."""
    try:
        async with http.stream(
            "POST", request.url, headers=request.headers, json=request.body
        ) as answer:
            async for _ in answer.aiter_bytes():
                begun.set()
            return answer.status_code
    except httpx2.HTTPError:
        return 0


async def _restart(http: httpx2.AsyncClient, running: Running) -> Made:
    """Send calls one after another, and restart the database after a third of them. The outage ends when a
    call that began after the restart is answered. Send the remaining calls then."""
    before = running.trial.calls // 3
    for _ in range(before):
        await _call(http, running.request)
    restarting = asyncio.create_task(running.session.restart_database())
    outage: list[int] = []
    async with asyncio.timeout(_RECOVERED_WITHIN_S):
        while True:
            restarted = restarting.done()
            status = await _call(http, running.request)
            if restarted and status == 200:
                break
            outage.append(status)
            await asyncio.sleep(_PAUSE_S)
    await restarting
    # The call that ended the outage is the first one of the remaining calls.
    for _ in range(running.trial.calls - before - 1):
        await _call(http, running.request)
    return Made(running.trial.calls + len(outage), len(outage), outage.count(200))


_RUNS = {"race": _race, "kill": _kill, "kill_during": _kill_during, "restart": _restart}
