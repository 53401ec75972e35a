"""Plays scenarios through a running gateway and compares its books with the true costs."""

import asyncio

import httpx2

from bench.billing.gateways.base import Booked, Session
from bench.billing.request import Request
from bench.billing.result import Result
from bench.billing.scenarios import Scenario
from bench.billing.upstream import Provider

_CALL_WITHIN_S = 90
_CONCURRENCY = 8
_BYTES_WITHIN_S = 3.0
_PAUSE_S = 0.05
# The number of characters of an answer that the results contain.
_SHOWN = 300


async def play_all(
    session: Session, provider: Provider, scenarios: list[Scenario]
) -> tuple[dict[str, str], dict[str, Booked]]:
    """Play the scenarios. Return the client's answer and the booking of each scenario."""
    turns = asyncio.Semaphore(_CONCURRENCY)
    async with httpx2.AsyncClient(timeout=_CALL_WITHIN_S, verify=False) as client:

        async def play(scenario: Scenario) -> str:
            async with turns:
                try:
                    return await _play(client, session.request(scenario), scenario, provider)
                except (httpx2.HTTPError, TimeoutError) as exc:
                    return f"{type(exc).__name__}: {exc}"

        answers = await asyncio.gather(*(play(scenario) for scenario in scenarios))
    named = {scenario.name: answer for scenario, answer in zip(scenarios, answers, strict=True)}
    return named, await session.books(scenarios, named)


async def _play(
    client: httpx2.AsyncClient, request: Request, scenario: Scenario, provider: Provider
) -> str:
    if not scenario.fault.client_leaves:
        answer = await client.post(request.url, headers=request.headers, json=request.body)
        return f"{answer.status_code} {answer.text}"
    try:
        return await _leave_early(client, request, scenario, provider)
    finally:
        provider.left[scenario.name].set()


async def _leave_early(
    client: httpx2.AsyncClient, request: Request, scenario: Scenario, provider: Provider
) -> str:
    """Disconnect when the first bytes have arrived. If they do not arrive, disconnect soon after the
    provider received the call: at once, or for a stream after `_BYTES_WITHIN_S` seconds."""
    patience_s = _BYTES_WITHIN_S if scenario.exchange.streamed else 0.0
    asked = asyncio.create_task(_first_bytes(client, request))
    try:
        async with asyncio.timeout(_CALL_WITHIN_S):
            while not asked.done():
                if provider.calls[scenario.name]:
                    if patience_s <= 0:
                        return "left"
                    patience_s -= _PAUSE_S
                await asyncio.sleep(_PAUSE_S)
            return await asked
    finally:
        asked.cancel()
        await asyncio.wait([asked])


async def _first_bytes(client: httpx2.AsyncClient, request: Request) -> str:
    async with client.stream(
        "POST", request.url, headers=request.headers, json=request.body
    ) as answer:
        async for _ in answer.aiter_bytes():
            break
        return f"{answer.status_code}, left"


def results(
    scenarios: list[Scenario],
    provider: Provider,
    answers: dict[str, str],
    books: dict[str, Booked],
    not_offered: dict[str, str],
) -> list[Result]:
    found = []
    for scenario in scenarios:
        name = scenario.name
        booked, answer = books.get(name, Booked(None)), answers.get(name, "")[:_SHOWN]
        reason = not_offered.get(name)
        if reason is None and not provider.calls[name]:
            reason = f"the gateway did not call the provider: {answer}"
        certain = booked.certain and not (scenario.truth.usd is None and _shows_no_cost(booked))
        found.append(Result(name, scenario.truth.usd, booked.usd, certain, answer, reason))
    return found


def _shows_no_cost(booked: Booked) -> bool:
    """Return whether the record shows that its cost is unknown: it has no amount, or says that the call
    failed."""
    return booked.usd is None or booked.failed
