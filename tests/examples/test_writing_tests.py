"""Contains one test of every kind. CONTRIBUTING.md shows the tests, and `test_contributing` compares both."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_calls import make_call
from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tests.support.judged_gateway import JudgedGateway, assert_denied
from tests.support.proof import Proof
from tests.support.scripted_gateway import COST, MODEL, ScriptedGateway, read_stream
from tests.support.sdks import openai
from tests.support.upstream import chunk, reset_after
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.inference import Delta
from tollkeeper.core.money import PICOUSD_MAX, picousd_from_usd, usd_from_picousd
from tollkeeper.providers.chat.stream import ChatStreamReader
from tollkeeper.tenants import organizations_store as organizations
from tollkeeper.tenants.organization import Organization


@given(st.integers(-PICOUSD_MAX + 1, PICOUSD_MAX - 1))
def test_an_amount_survives_its_text(picousd: int) -> None:
    assert picousd_from_usd(usd_from_picousd(picousd)) == picousd


def test_reasoning_of_a_chat_backend_is_read() -> None:
    stream = ChatStreamReader(make_call(streamed=True))
    record = chunk(delta={"reasoning_content": "Well."})
    _, event = stream.read([json.dumps(record).encode()])
    assert event == Delta(0, reasoning="Well.")


async def test_a_check_is_granted_once(gateway: Gateway) -> None:
    made = Organization(OrganizationId(uuid4()), "Acme", created_at=1_800_000_000)
    async with gateway.services.database.transaction() as connection:
        await organizations.insert(connection, made)
        for now in (1_800_000_001, 1_800_000_002):
            await organizations.grant_check(connection, made.id, "kyc", now)
    async with gateway.services.database.autocommit() as connection:
        assert await organizations.find(connection, made.id) == replace(made, checks=("kyc",))


async def test_a_rule_must_be_a_question(gateway: Gateway, tenant: Tenant) -> None:
    body = {"name": "No secrets", "rule": "No secrets."}
    headers = {**tenant.as_admin, **idempotency_key()}
    answer = await gateway.client.post("/v1/organization/policies", json=body, headers=headers)
    assert_error(answer, 400, "invalid_request", param="rule")


async def test_a_stream_that_breaks_is_paid_as_far_as_it_came(scripted: ScriptedGateway) -> None:
    scripted.upstream.play(reset_after(2))
    answer = await scripted.chat(stream=True)
    assert read_stream(answer.text).error is not None
    entry = await scripted.entry_of(answer)
    assert (entry.status, entry.cost) == ("settled", entry.delivered_pieces(2))
    assert (await scripted.balance())["held"] == 0


async def test_a_policy_denies_what_it_matches(judged: JudgedGateway) -> None:
    policy = await judged.enforce("bomb", direction="request")
    assert (await judged.chat("peace")).status_code == 200
    assert_denied(await judged.chat("a bomb"), policy, "request")
    assert judged.judge.questions == ["Does it say bomb?"] * 2


async def test_the_openai_sdk_streams(scripted: ScriptedGateway) -> None:
    base_url, api_key = f"{scripted.gateway.base_url}/v1", scripted.tenant.project_key
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        pieces = [piece.choices[0].delta.content or "" async for piece in stream]
    assert "".join(pieces) == "Hello"
    assert (await scripted.balance())["settled"] == COST


def test_amounts_keep_their_order(proof: Proof) -> None:
    amounts = proof.size(quick=100, long=100_000)
    for seed in range(amounts):
        picousd = random.Random(seed).randrange(PICOUSD_MAX)
        assert picousd_from_usd(usd_from_picousd(picousd + 1)) > picousd, seed
    proof.count("amounts and their successors", amounts)
