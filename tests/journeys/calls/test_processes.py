"""Tests that several gateways on one database admit as many calls together as one gateway would."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from tests.support.gateway_processes import installed_program
from tests.support.scripted_gateway import chat_body
from tests.support.upstream import Peer, Upstream, answer, chat, completion

pytestmark = pytest.mark.slow


async def test_a_herd_with_credit_for_ten(
    tmp_path: Path, data_dir: Path, conninfo: str, compiled: dict[str, str]
) -> None:
    """C7: Sends 500 calls at once to two gateways. Each call costs exactly its hold, so ten are admitted."""
    async with (
        Upstream(chat()) as upstream,
        installed_program(
            tmp_path,
            data_dir,
            conninfo,
            upstream,
            compiled,
            limits={"inference_deadline_s": 60},
        ) as installed,
        AsyncExitStack() as gateways,
    ):
        served = await asyncio.gather(
            *(gateways.enter_async_context(installed.serving()) for _ in range(2))
        )
        rich = served[0][1]
        bound = (await rich.entry_of(await rich.chat(max_tokens=1))).prompt_tokens_max

        async def exact(peer: Peer) -> None:
            usage = {"prompt_tokens": bound, "completion_tokens": 1, "total_tokens": bound + 1}
            await answer(completion(usage=usage))(peer)

        upstream.play(exact)
        scripted = await rich.with_tenant(credit=0)
        await scripted.grant(10 * (await rich.entry_of(await rich.chat(max_tokens=1))).hold)
        body, headers = chat_body(max_tokens=1), scripted.tenant.as_customer
        clients = [other.gateway.client for _, other in served]
        calls = len(upstream.requests)
        answers: list[httpx2.Response] = await asyncio.gather(
            *(
                clients[number % 2].post("/v1/chat/completions", json=body, headers=headers)
                for number in range(500)
            )
        )
        statuses = [found.status_code for found in answers]
        assert statuses.count(200) == 10
        assert statuses.count(402) == 490
        assert len(upstream.requests) - calls == 10
        entries = await scripted.entries()
        assert [(entry.status, entry.cost) for entry in entries] == [
            ("settled", entry.hold) for entry in entries
        ]
        balance = await scripted.balance()
        assert balance["settled"] == balance["granted"]
        assert (balance["held"], balance["resolutions"]) == (0, 10)
