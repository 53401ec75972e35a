"""Trials with many calls: races for a budget, a killed gateway, a restarted database."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2

from bench.billing.request import Request
from bench.billing.result import TrialResult
from bench.billing.scenarios import call_cost
from bench.billing.upstream import Provider

CARD = "standard"
_PROMPT, _COMPLETION = 1000, 200
COST = call_cost(CARD, _PROMPT, _COMPLETION).usd
_CALL_WITHIN_S = 60
# How long the provider works on an answer, so that calls of a race overlap.
_WORK_S = 0.5


@dataclass(frozen=True)
class Trial:
    name: str
    kind: str
    calls: int
    # The budget pays so many calls.
    budget_calls: int | None = None
    processes: int = 1

    @property
    def budget(self) -> Decimal | None:
        assert COST is not None
        return None if self.budget_calls is None else self.budget_calls * COST


def load_trials() -> list[Trial]:
    written = json.loads((Path(__file__).parent / "trials.json").read_text())
    return [Trial(**trial) for trial in written]


@dataclass(frozen=True)
class TrialSession:
    """A gateway with one client. The functions are what a trial does to it."""

    # A process of the gateway each.
    requests: list[Request]
    booked: Callable[[], Awaitable[Decimal]]
    # Kill the gateway without a warning, and start it again: returns its new requests.
    kill: Callable[[], Awaitable[list[Request]]] | None = None
    restart_database: Callable[[], Coroutine[Any, Any, None]] | None = None


Starter = Callable[[Path, int, Trial], AbstractAsyncContextManager[TrialSession]]


def ask() -> dict[str, Any]:
    """What the client sends. A hold for it is as large as its cost, if a gateway makes one."""
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


async def run_trial(starter: Starter, folder: Path, trial: Trial) -> TrialResult:
    """Run one trial. The provider's bill is the cost of every answer that it gave."""
    async with Provider([]) as provider:
        delay_s = _WORK_S if trial.kind == "race" else 0.0
        provider.trials[trial.name] = (_answer(), delay_s)
        async with starter(folder, provider.port, trial) as session, _client() as client:
            await _RUNS[trial.kind](client, session, trial)
            booked = await session.booked()
        assert COST is not None
        answered = provider.answered[trial.name]
    return TrialResult(trial.name, answered * COST, booked, trial.budget, trial.calls, answered)


@asynccontextmanager
async def _client() -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=_CALL_WITHIN_S, verify=False, limits=limits) as client:
        yield client


async def _call(client: httpx2.AsyncClient, request: Request) -> int:
    try:
        answer = await client.post(request.url, headers=request.headers, json=request.body)
    except httpx2.HTTPError:
        return 0
    return answer.status_code


async def _race(client: httpx2.AsyncClient, session: TrialSession, trial: Trial) -> None:
    """All calls at once, at each process in turn; then one after another, until one is refused."""
    requests = session.requests
    calls = (_call(client, requests[number % len(requests)]) for number in range(trial.calls))
    await asyncio.gather(*calls)
    for _ in range(trial.calls):
        if await _call(client, requests[0]) != 200:
            return


async def _kill(client: httpx2.AsyncClient, session: TrialSession, trial: Trial) -> None:
    """Calls one after another; the gateway is killed as soon as the last one is answered."""
    assert session.kill is not None
    for _ in range(trial.calls):
        await _call(client, session.requests[0])
    await session.kill()


async def _restart(client: httpx2.AsyncClient, session: TrialSession, trial: Trial) -> None:
    """Calls one after another; the database is restarted in the middle of them."""
    assert session.restart_database is not None
    restarting: asyncio.Task[None] | None = None
    for number in range(trial.calls):
        if number == trial.calls // 3:
            restarting = asyncio.create_task(session.restart_database())
        await _call(client, session.requests[0])
    if restarting is not None:
        await restarting


_RUNS = {"race": _race, "kill": _kill, "restart": _restart}
