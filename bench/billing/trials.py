"""Runs trials with many calls: races for a budget, a killed gateway and a restarted database."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
# In a race, the provider answers when no call has arrived for this time. All calls that a gateway
# admits at once thus overlap, even on a slow machine.
_QUIET_S = 2.0


@dataclass(frozen=True)
class Trial:
    name: str
    kind: str
    calls: int
    # The number of calls that the budget can pay.
    budget_calls: int | None = None
    processes: int = 1

    @property
    def budget(self) -> Decimal | None:
        assert COST is not None
        return None if self.budget_calls is None else self.budget_calls * COST


def load_trials() -> list[Trial]:
    written = json.loads((Path(__file__).parent / "trials.json").read_text())
    return [Trial(**trial) for trial in written]


def processes_of(trials: list[Trial]) -> int:
    """Return the number of processes with which a gateway has to run."""
    return max((trial.processes for trial in trials), default=1)


@dataclass(frozen=True)
class Client:
    """A client with its own budget, if the trial has one."""

    # The addresses at which the client can call the gateway, each as a request.
    requests: list[Request]
    # Waits for the gateway's accounting of this number of answers, and returns the booked cost.
    booked: Callable[[int], Awaitable[Decimal]]


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
    """Run one trial. The provider bills every answer that it sent."""
    provider.trials[trial.name] = (_answer(), _QUIET_S if trial.kind == "race" else 0.0)
    client = await session.client(trial)
    async with _http() as http:
        await _RUNS[trial.kind](http, session, client, trial)
    answered = provider.answered[trial.name]
    booked = await client.booked(answered)
    assert COST is not None
    return TrialResult(trial.name, answered * COST, booked, trial.budget, trial.calls, answered)


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


async def _race(http: httpx2.AsyncClient, session: OnTrial, client: Client, trial: Trial) -> None:
    """Send all calls at once, to each process in turn. Then send calls one by one until one is rejected."""
    requests = client.requests
    calls = (_call(http, requests[number % len(requests)]) for number in range(trial.calls))
    await asyncio.gather(*calls)
    for _ in range(trial.calls):
        if await _call(http, requests[0]) != 200:
            return


async def _kill(http: httpx2.AsyncClient, session: OnTrial, client: Client, trial: Trial) -> None:
    """Send calls one after another, and kill the gateway as soon as the last call is answered."""
    for _ in range(trial.calls):
        await _call(http, client.requests[0])
    await session.kill()


async def _restart(
    http: httpx2.AsyncClient, session: OnTrial, client: Client, trial: Trial
) -> None:
    """Send calls one after another, and restart the database after a third of them."""
    restarting: asyncio.Task[None] | None = None
    for number in range(trial.calls):
        if number == trial.calls // 3:
            restarting = asyncio.create_task(session.restart_database())
        await _call(http, client.requests[0])
    if restarting is not None:
        await restarting


_RUNS = {"race": _race, "kill": _kill, "restart": _restart}
