"""Tests with the real engine that a token count equals the usage that the engine reports, and that the
estimate is not too low for the tested texts."""

import base64
import json
import random
import string
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tollkeeper
from tests.support.engine import address_of, ask, running_engine
from tests.support.gateway import Gateway, Tenant, running_gateway
from tests.support.responses_answers import read_events, retell
from tests.support.token_counts import count
from tollkeeper.core.estimate import estimate_tokens, measure_text
from tollkeeper.setup.embedded.engine import EmbeddedEngine
from tollkeeper.setup.embedded.packaged_model import PACKAGED_MODEL
from tollkeeper.setup.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.engine]

MODEL = "local/small"
TOOL = {
    "name": "look",
    "description": "Looks at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


@dataclass(frozen=True)
class Local:
    """A gateway with the embedded engine, and a tenant."""

    gateway: Gateway
    tenant: Tenant


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[EmbeddedEngine]:
    async with running_engine() as running:
        yield running


@pytest.fixture(scope="module")
async def local(engine: EmbeddedEngine, data_dir: Path, conninfo: str) -> AsyncIterator[Local]:
    settings = Settings.model_validate(
        {
            "database": {"data_dir": data_dir, "pool_size": 4},
            "backends": [{"name": "local", "kind": "embedded"}],
            "models": [
                {
                    "id": MODEL,
                    "backend": "local",
                    "upstream_model": PACKAGED_MODEL.upstream_model,
                    "context_length": 1024,
                    "max_output_length": 256,
                    "supported_features": ["tools"],
                }
            ],
        }
    )
    async with running_gateway(settings, conninfo, engine=address_of(engine)) as gateway:
        tenant = await gateway.make_tenant()
        await gateway.services.accounts.credit_grant(tenant.organization_id, 10**12, "test")
        yield Local(gateway, tenant)


def as_responses(body: dict[str, Any]) -> dict[str, Any]:
    """Converts the body of a Messages request into the same fields of a Responses request."""
    items: list[dict[str, Any]] = []
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        parts = [{"type": kind, "text": block["text"]} for block in blocks if "text" in block]
        if parts:
            items.append({"role": message["role"], "content": parts})
    tools = [
        {
            "type": "function",
            "name": tool["name"],
            "description": tool["description"],
            "parameters": tool["input_schema"],
        }
        for tool in body.get("tools", ())
    ]
    return {"input": items, "instructions": body.get("system"), "tools": tools}


INPUTS: dict[str, dict[str, Any]] = {
    "one word": {"messages": [{"role": "user", "content": "Hello"}]},
    "system": {"system": "Be brief.", "messages": [{"role": "user", "content": "Who are you?"}]},
    "history": {
        "messages": [
            {"role": "user", "content": "Мой дом — моя крепость. 我的家。 🏰"},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
            {"role": "user", "content": [{"type": "text", "text": "def f(x):\n    return x\n"}]},
        ]
    },
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
            }
        ]
    },
    "tools": {"tools": [TOOL], "messages": [{"role": "user", "content": "Look at the lake."}]},
}


@pytest.mark.parametrize("name", INPUTS)
async def test_count_is_the_usage_that_follows(local: Local, name: str) -> None:
    body = INPUTS[name]
    counted = await count(local, model=MODEL, **body)
    assert counted.status_code == 200, counted.text
    assert counted.headers["x-token-count-estimated"] == "false"
    answer = await local.gateway.client.post(
        "/v1/responses",
        json={"model": MODEL, "max_output_tokens": 1, **as_responses(body)},
        headers=local.tenant.as_customer,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["input_tokens"] == counted.json()["input_tokens"]


async def test_streamed_response(local: Local) -> None:
    body = {"model": MODEL, "input": "Count to three.", "max_output_tokens": 8, "stream": True}
    answer = await local.gateway.client.post(
        "/v1/responses", json=body, headers=local.tenant.as_customer
    )
    events, done = read_events(answer.text)
    assert done
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == retell(events).texts[0, 0]
    assert 1 <= response["usage"]["output_tokens"] <= 8


def _corpus() -> dict[str, str]:
    chance = random.Random(7)
    source = (Path(tollkeeper.__file__).parent / "money" / "holds" / "rule.py").read_text()
    rows = [{"id": chance.randrange(10**6), "ok": True, "price": chance.random()} for _ in range(9)]
    return {
        "prose": "The letter lay on the table where the postman had left it, between a plate of"
        " buttered toast and a vase of yellow tulips which had begun to lean. Nobody replied.",
        "python": source[2000:3500],
        "javascript": "const total = items.filter((x) => x.ok).reduce((a, b) => a + b.price, 0);\n"
        "if (!total) { throw new Error(`nothing: ${JSON.stringify(items)}`); }",
        "c": "static int find(const char *name, size_t len) {\n\tfor (int i = 0; i < N; i++)\n\t\t"
        "if (!strncmp(tab[i].name, name, len)) return i;\n\treturn -1;\n}",
        "compact JSON": json.dumps(rows, separators=(",", ":")),
        "pretty JSON": json.dumps(rows, indent=2),
        "emoji": "".join(chance.choices("😀😂🥰🤔🔥✨🎉🚀🧠🫠⚽🍕", k=60)),
        "family emoji": "👨‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪" * 9,
        "Chinese": "今天早上我去市场买菜,天气非常好,街上的人很多。春眠不觉晓,处处闻啼鸟。",
        "Russian": "Счастливые семьи похожи друг на друга, каждая несчастлива по-своему.",
        "Arabic": "ذهبت هذا الصباح إلى السوق لشراء الخضروات، وكان الطقس جميلا والشوارع مزدحمة.",
        "German": "Donaudampfschifffahrtsgesellschaften ermöglichen überdurchschnittliche Zuwächse.",
        "base64": base64.b64encode(chance.randbytes(600)).decode(),
        "hexadecimal": chance.randbytes(300).hex(),
        "numbers": " ".join(str(chance.randrange(10**9)) for _ in range(60)),
        "table": "\n".join(f"| {chance.randrange(99)} | cat | N/A |" for _ in range(20)),
        "nonsense": " ".join(
            "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(40)
        ),
        "capitals": "NO TRESPASSING. VIOLATORS WILL BE PROSECUTED.",
        "letters": "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    }


def _unusual() -> dict[str, str]:
    """Returns texts that a client would send only to get a hold that is too small."""
    chance = random.Random(7)

    def between(separator: str, characters: str) -> str:
        return separator.join(chance.choices(characters, k=300))

    frequent = "etaoinshrdlu"
    return {
        "letters far apart": between("  ", frequent),
        "letters further apart": between("     ", frequent),
        "digits far apart": between("  ", string.digits),
        "punctuation far apart": between("  ", string.punctuation),
        "punctuation apart": between(" ", string.punctuation),
        "letters and punctuation": between(";", frequent),
        "lines of one letter": between("\n", frequent),
        "indented letters": between("\n    ", frequent),
        "blanks and lines": "".join(chance.choices(" \n", k=600)),
        "blanks and tabs": "".join(chance.choices(" \t", k=600)),
        "empty lines": "\n" * 300,
        "rare characters": "".join(chr(chance.randrange(0x20000, 0x2A6D0)) for _ in range(200)),
        "a word in one character": "\ufdfa" * 200,
        "notes": "\U0001d160" * 200,
    }


async def _count_exactly(engine: EmbeddedEngine, text: str) -> int:
    address = address_of(engine)
    root = replace(address, base_url=address.base_url.removesuffix("/v1"))
    answer = await ask(root, "/tokenize", {"content": text})
    return len(answer.json["tokens"])


@pytest.mark.parametrize("text", _corpus().values(), ids=list(_corpus()))
async def test_estimate_errs_high(engine: EmbeddedEngine, text: str) -> None:
    """The estimate is at least the exact count, and at most 2.5 times the exact count."""
    exact = await _count_exactly(engine, text)
    assert exact <= estimate_tokens(text) <= 2.5 * exact


@pytest.mark.parametrize("text", _unusual().values(), ids=list(_unusual()))
async def test_estimate_errs_high_on_what_is_written_to_mislead_it(
    engine: EmbeddedEngine, text: str
) -> None:
    assert await _count_exactly(engine, text) <= estimate_tokens(text)


async def test_no_letters_have_more_tokens_than_bytes(engine: EmbeddedEngine) -> None:
    """Here the estimate is too low. For this case, `token_bounds.text = "bytes"` holds one token for
    each byte."""
    text = "".join(random.Random(7).choices("etaoinshrdlu", k=1000))
    tokens, bytes_max = measure_text(text)
    assert tokens < await _count_exactly(engine, text) <= bytes_max
