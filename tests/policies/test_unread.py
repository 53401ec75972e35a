"""Tests that content which the judge cannot read is named in the verdict, or denied if the settings
say so."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.scripted_gateway import COST
from tests.support.upstream import (
    DONE,
    Verb,
    answer,
    chat,
    chunk,
    completion,
    sse,
    stream,
    usage_chunk,
)

_IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(300)).decode()
_INLINE: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{_PNG}"},
}


def _file(content: bytes, **fields: str) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"type": "file", "file": {"file_data": f"data:text/plain;base64,{data}", **fields}}


def _message(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "Look."}, *parts]}]


@pytest.mark.parametrize(
    ("parts", "unread"),
    [
        ((), ()),
        ((_IMAGE,), ("image",)),
        ((_INLINE, _IMAGE), ("image",)),
        ((_file(b"%PDF\x00\xff" * 100), _INLINE), ("file", "image")),
        ((_file(b"a plain note"),), ()),
        (({"type": "file", "file": {"file_id": "file-1"}},), ("file",)),
    ],
)
async def test_the_record_names_it(
    judged: JudgedGateway, parts: tuple[dict[str, Any], ...], unread: tuple[str, ...]
) -> None:
    await judged.enforce(direction="request")
    await judged.publish("cat", direction="request")
    found = await judged.chat(messages=_message(*parts))
    assert found.status_code == 200, found.text
    verdicts = (await judged.entry(found)).verdicts
    assert [verdict.unread for verdict in verdicts] == [unread, unread]


async def test_a_file_that_is_text_is_judged(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="request")
    text = "A long and harmless beginning. " * 300 + "Then a bomb."
    found = await judged.chat(messages=_message(_file(text.encode())))
    assert_denied(found, policy, "request")


@pytest.fixture(scope="module")
async def strict(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    async with judged_gateway(
        data_dir,
        conninfo,
        model={"input_modalities": ["text", "image", "file"]},
        policy={"denied_content": ["images"]},
    ) as running:
        yield running


async def test_an_enforcing_policy_denies_what_it_cannot_read(strict: JudgedGateway) -> None:
    under_policy, without = await strict.with_tenant(), await strict.with_tenant()
    policy = await under_policy.enforce(direction="request")
    asked = len(strict.judge.asked)
    calls = len(strict.model.requests)
    for image in (_IMAGE, _INLINE):
        found = await under_policy.chat(messages=_message(image))
        assert_error(found, 403, "policy_denied", param="messages[0].content[1]")
        assert policy.id in found.json()["error"]["message"]
        (verdict,) = (await under_policy.entry(found)).verdicts
        assert verdict.unread == ("image",)
        assert verdict.probability_basis_points is None
        assert (await under_policy.scripted.entry_of(found)).status == "released"
    assert (len(strict.judge.asked), len(strict.model.requests)) == (asked, calls)
    # Files are allowed, and so are images of a tenant without policies.
    assert (await under_policy.chat(messages=_message(_file(b"\xff\x00")))).status_code == 200
    assert (await without.chat(messages=_message(_IMAGE))).status_code == 200


async def test_monitoring_denies_nothing(strict: JudgedGateway) -> None:
    tenant = await strict.with_tenant()
    await tenant.publish(direction="request")
    found = await tenant.chat(messages=_message(_IMAGE))
    assert found.status_code == 200, found.text
    (verdict,) = (await tenant.entry(found)).verdicts
    assert verdict.unread == ("image",)


def _drawn(url: str, *, streamed: bool) -> Verb:
    """Returns an answer with an image, in OpenRouter's format."""
    message = {"content": "Look.", "images": [{"type": "image_url", "image_url": {"url": url}}]}
    if streamed:
        records = [chunk(delta=message), chunk(finish="stop"), usage_chunk()]
        return stream([*map(sse, records), DONE])
    body = completion()
    body["choices"][0]["message"] = {"role": "assistant", **message}
    return answer(body)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_image_in_an_answer_is_denied_and_paid(
    strict: JudgedGateway, streamed: bool
) -> None:
    under_policy, without = await strict.with_tenant(), await strict.with_tenant()
    policy = await under_policy.enforce(direction="response")
    url = _INLINE["image_url"]["url"]
    strict.model.play(_drawn(url, streamed=streamed))
    found = await under_policy.chat(stream=streamed)
    assert_error(found, 403, "policy_denied")
    assert policy.id in found.json()["error"]["message"]
    assert url not in found.text
    (verdict,) = (await under_policy.entry(found)).verdicts
    assert verdict.unread == ("image",)
    assert (await under_policy.scripted.entry_of(found)).cost == COST
    strict.model.play(_drawn(url, streamed=streamed))
    assert url in (await without.chat(stream=streamed)).text
    strict.model.play(chat())


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_image_in_an_answer_is_named(judged: JudgedGateway, streamed: bool) -> None:
    await judged.enforce(direction="response")
    url = _INLINE["image_url"]["url"]
    judged.model.play(_drawn(url, streamed=streamed))
    found = await judged.chat(stream=streamed)
    assert url in found.text
    (verdict,) = (await judged.entry(found)).verdicts
    assert verdict.unread == ("image",)


async def test_an_image_that_is_text_is_judged(judged: JudgedGateway) -> None:
    policy = await judged.enforce(direction="response")
    svg = base64.b64encode(b"<svg><text>a bomb</text></svg>" + b" " * 300).decode()
    judged.model.play(_drawn(f"data:image/svg+xml;base64,{svg}", streamed=False))
    assert_denied(await judged.chat(), policy, "response")
