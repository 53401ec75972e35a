"""Tests that `policy.denied_content` denies media in every base64 spelling, for chat and Responses, and
that a text file is judged in every spelling."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.support.gateway import assert_error
from tests.support.judged_gateway import JudgedGateway, assert_denied, judged_gateway
from tests.support.responses_answers import respond

_PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2
_PDF = b"%PDF-1.4\n1 0 obj << /Type /Catalog /Names (A bomb) >> endobj\n%%EOF\n"
_NOTE = b"A harmless beginning, and then a bomb \xc3\xbf\xc3\xbe\xc3\xbf?>?>"


def _lines(length: int) -> Callable[[bytes], str]:
    def spell(content: bytes) -> str:
        text = base64.b64encode(content).decode()
        return "\n".join(text[at : at + length] for at in range(0, len(text), length))

    return spell


def _plain(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _blank(content: bytes) -> str:
    return f" {_plain(content)[:8]} {_plain(content)[8:]}"


def _url_safe(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


def _percent(content: bytes) -> str:
    return quote(_plain(content), safe="")


def _unpadded(content: bytes) -> str:
    return _plain(content + b" " * (len(content) % 3 == 0)).rstrip("=")


SPELLINGS = pytest.mark.parametrize(
    "spell",
    [_plain, _lines(64), _lines(5), _blank, _url_safe, _percent, _unpadded],
    ids=("plain", "lines of 64", "lines of 5", "blank", "url-safe", "percent", "unpadded"),
)
HEADS = pytest.mark.parametrize("marker", [";base64,", "; base64,", ";BASE64 ,"])


@pytest.fixture(scope="module")
async def shared_strict(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    kinds = ("images", "audio", "video", "files")
    async with judged_gateway(
        data_dir,
        conninfo,
        model={
            "input_modalities": ["text", "image", "audio", "video", "file"],
            "context_length": 1_000_000,
        },
        policy={"denied_content": kinds},
    ) as running:
        yield running


@pytest.fixture
async def strict(shared_strict: JudgedGateway) -> JudgedGateway:
    return await shared_strict.for_next_test()


async def _chat(strict: JudgedGateway, part: dict[str, Any]) -> httpx2.Response:
    return await strict.chat(messages=[{"role": "user", "content": [part]}])


async def _responses(strict: JudgedGateway, part: dict[str, Any]) -> httpx2.Response:
    turn = {"type": "message", "role": "user", "content": [part]}
    return await respond(strict.scripted, input=[turn])


async def _assert_denied_unread(
    strict: JudgedGateway, call: Callable[..., Any], part: dict[str, Any], kind: str
) -> None:
    """Checks that the part is denied, and that neither the judge nor the model got a request."""
    await strict.enforce("nothing of the kind", direction="request")
    before = len(strict.model.requests)
    found = await call(strict, part)
    assert_error(found, 403, "policy_denied", param=found.json()["error"]["param"])
    assert found.json()["error"]["message"].endswith(f"the judge cannot read its {kind}.")
    assert found.json()["error"]["param"].endswith("[0].content[0]")
    assert (strict.judge.asked, len(strict.model.requests)) == ([], before)


@SPELLINGS
@HEADS
async def test_images(strict: JudgedGateway, spell: Callable[[bytes], str], marker: str) -> None:
    url = f"data:image/png{marker}{spell(_PNG)}"
    part = {"type": "image_url", "image_url": {"url": url}}
    await _assert_denied_unread(strict, _chat, part, "image")
    part = {"type": "input_image", "image_url": url}
    await _assert_denied_unread(strict, _responses, part, "image")


@SPELLINGS
@pytest.mark.parametrize("head", ["", "data:application/pdf; base64,", "data:text/plain;base64,"])
async def test_an_ascii_pdf(
    strict: JudgedGateway, spell: Callable[[bytes], str], head: str
) -> None:
    data = {"file_data": head + spell(_PDF), "filename": "a"}
    await _assert_denied_unread(strict, _chat, {"type": "file", "file": data}, "file")
    await _assert_denied_unread(strict, _responses, {"type": "input_file", **data}, "file")


@SPELLINGS
async def test_audio_and_video(strict: JudgedGateway, spell: Callable[[bytes], str]) -> None:
    audio = {"data": spell(_PNG), "format": "wav"}
    part = {"type": "input_audio", "input_audio": audio}
    await _assert_denied_unread(strict, _chat, part, "audio")
    url = f"data:video/mp4;base64,{spell(_PNG)}"
    part = {"type": "video_url", "video_url": {"url": url}}
    await _assert_denied_unread(strict, _chat, part, "video")


@pytest.mark.parametrize("data", ["no base64!", "data:text/plain,a%20note", "a=b="])
async def test_what_cannot_be_decoded(strict: JudgedGateway, data: str) -> None:
    file = {"file_data": data, "filename": "a"}
    await _assert_denied_unread(strict, _chat, {"type": "file", "file": file}, "file")
    await _assert_denied_unread(strict, _responses, {"type": "input_file", **file}, "file")


@SPELLINGS
@HEADS
async def test_a_text_file_is_judged(
    judged: JudgedGateway, spell: Callable[[bytes], str], marker: str
) -> None:
    """By default, files that are not text pass. Text files are decoded and judged."""
    policy = await judged.enforce(direction="request")
    data = {"file_data": f"data:text/plain{marker}{spell(_NOTE)}", "filename": "a.txt"}
    assert_denied(await _chat(judged, {"type": "file", "file": data}), policy, "request")
    assert_denied(await _responses(judged, {"type": "input_file", **data}), policy, "request")


@pytest.mark.parametrize("spell", [_plain, _lines(64), _blank, _unpadded])
async def test_a_text_file_that_every_decoder_reads_alike_passes(
    strict: JudgedGateway, spell: Callable[[bytes], str]
) -> None:
    await strict.enforce("war", direction="request")
    data = {"file_data": f"data:text/plain; base64,{spell(_NOTE)}", "filename": "a.txt"}
    found = await _chat(strict, {"type": "file", "file": data})
    assert found.status_code == 200, found.text
    assert "then a bomb" in strict.judge.texts[-1]
    assert data["file_data"] in json.dumps(strict.model.requests[-1].json).replace("\\n", "\n")
