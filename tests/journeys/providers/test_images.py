"""Tests images in answers: chat and Responses deliver them, they have their own price, and their size
is limited."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.providers.native_providers import PROVIDERS
from tests.journeys.providers.programs import BOTH, client_of, provider_gateway
from tests.support.gateway import assert_error
from tests.support.scripted_gateway import MODEL, ScriptedGateway, read_stream
from tests.support.upstream_gemini import generate, text_part
from tollkeeper.core.money import picousd_from_usd

_GEMINI = PROVIDERS["gemini"]
_PRICES = {"prompt": "0.000003", "completion": "0.000015", "output_image": "0.00006"}
_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
_ADDRESS = f"data:image/png;base64,{_PNG}"
_USAGE = {
    "promptTokenCount": 10,
    "candidatesTokenCount": 1300,
    "totalTokenCount": 1310,
    "candidatesTokensDetails": [
        {"modality": "IMAGE", "tokenCount": 1290},
        {"modality": "TEXT", "tokenCount": 10},
    ],
}
_COST = 10 * 3_000_000 + 10 * 15_000_000 + 1290 * 60_000_000


def _image(data: str = _PNG, media_type: str = "image/png") -> dict[str, Any]:
    return {"inlineData": {"mimeType": media_type, "data": data}}


_DRAWN = (text_part("A fox:"), _image(), text_part("It is red."))
_CONTENT = [
    {"type": "text", "text": "A fox:"},
    {"type": "image_url", "image_url": {"url": _ADDRESS}},
    {"type": "text", "text": "It is red."},
]


@pytest.fixture(scope="module")
async def shared(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with provider_gateway(
        data_dir, conninfo, _GEMINI, pricing=_PRICES, output_modalities=["text", "image"]
    ) as running:
        yield running


@pytest.fixture
async def scripted(shared: ScriptedGateway) -> ScriptedGateway:
    await shared.works()
    return await shared.with_tenant()


def _play(scripted: ScriptedGateway, *parts: dict[str, Any], **fields: Any) -> None:
    scripted.upstream.play(_GEMINI.counting(generate(*parts, **{"usage": _USAGE, **fields})))


async def test_the_content_of_a_chat_answer_has_its_parts_in_order(
    scripted: ScriptedGateway,
) -> None:
    _play(scripted, *_DRAWN)
    found = await scripted.chat()
    [choice] = found.json()["choices"]
    assert choice["message"]["content"] == _CONTENT
    assert (await scripted.entry_of(found)).cost == _COST


async def test_a_chat_stream_has_an_image_as_a_part_of_the_content(
    scripted: ScriptedGateway,
) -> None:
    _play(scripted, *_DRAWN)
    found = await scripted.chat(stream=True)
    chunks = read_stream(found.text).chunks
    contents = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [content for content in contents if isinstance(content, list)] == [[_CONTENT[1]]]
    texts = [content for content in contents if isinstance(content, str)]
    assert "".join(texts) == "A fox:It is red."
    assert (await scripted.entry_of(found)).cost == _COST


async def test_the_cost_report_has_a_line_for_images(scripted: ScriptedGateway) -> None:
    _play(scripted, *_DRAWN)
    await scripted.chat()
    report = await scripted.gateway.client.get(
        "/v1/organization/costs",
        params={"start_time": int(time.time()) - 86_400, "group_by": "line_item"},
        headers=scripted.tenant.as_admin,
    )
    lines = {
        line["line_item"]: line["amount"]["value"]
        for bucket in report.json()["data"]
        for line in bucket["results"]
    }
    assert lines[f"{MODEL}, output_image"] == "0.0774"
    assert lines[f"{MODEL}, completion"] == "0.00015"


@BOTH
async def test_the_sdk_reads_an_image_of_a_response(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    _play(scripted, *_DRAWN)
    async with client_of(scripted) as client:
        if streamed:
            async with client.responses.stream(model=MODEL, input="Draw.") as answering:
                names = [event.type async for event in answering]
                result: Any = await answering.get_final_response()
            assert "response.image_generation_call.completed" in names
        else:
            result = await client.responses.create(model=MODEL, input="Draw.")
    before, image, after = result.output
    assert (before.type, image.type, after.type) == ("message", "image_generation_call", "message")
    assert (image.status, image.result) == ("completed", _PNG)
    assert result.output_text == "A fox:It is red."


async def test_an_image_goes_back_with_the_next_request(scripted: ScriptedGateway) -> None:
    _play(scripted, text_part("Done."))
    messages = [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "content": _CONTENT},
        {"role": "user", "content": "Make it blue."},
    ]
    found = await scripted.chat(messages=messages, modalities=["image"])
    assert found.status_code == 200, found.text
    sent = scripted.upstream.requests[-1].json
    assert sent["contents"][1]["parts"] == [{"text": "A fox:"}, _image(), {"text": "It is red."}]
    assert sent["generationConfig"]["responseModalities"] == ["IMAGE"]


@BOTH
async def test_a_large_image_comes_whole(scripted: ScriptedGateway, streamed: bool) -> None:
    """The image is larger than the limit for a stream record with text."""
    large = "A" * (3 << 20)
    _play(scripted, _image(large))
    found = await scripted.chat(stream=streamed)
    assert f"data:image/png;base64,{large}" in found.text
    if streamed:
        assert read_stream(found.text).done


async def test_images_beyond_all_bounds_end_the_stream(scripted: ScriptedGateway) -> None:
    _play(scripted, *[_image("A" * (8 << 20))] * 9)
    found = await scripted.chat(stream=True)
    said = read_stream(found.text)
    assert said.error is not None
    assert (await scripted.entry_of(found)).status == "settled"


async def test_the_hold_covers_images_at_their_price(scripted: ScriptedGateway) -> None:
    """`max_tokens` does not limit images, so the hold covers the model's maximum output length."""
    _play(scripted, *_DRAWN)
    entry = await scripted.entry_of(await scripted.chat(max_tokens=10))
    assert entry.hold >= 8192 * picousd_from_usd(_PRICES["output_image"])
    assert entry.overage == 0


@BOTH
async def test_an_image_without_a_report_is_charged_as_the_largest(
    scripted: ScriptedGateway, streamed: bool
) -> None:
    _play(scripted, _image(), usage=None)
    entry = await scripted.entry_of(await scripted.chat(stream=streamed))
    assert (entry.status, entry.estimated) == ("settled", True)
    assert entry.cost >= 6240 * picousd_from_usd(_PRICES["output_image"])


async def test_a_medium_that_no_answer_carries_is_an_error(scripted: ScriptedGateway) -> None:
    _play(scripted, _image(media_type="audio/wav"))
    found = await scripted.chat()
    assert_error(found, 502, "provider_unavailable")
    assert (await scripted.entry_of(found)).cost == _COST
