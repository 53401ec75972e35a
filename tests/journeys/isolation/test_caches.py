"""Tests that backends' prefix caches are separated by project, unless the operator shares them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.responses_answers import respond
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway, scripted_gateway
from tests.support.upstream import Upstream, chat
from tests.support.upstream_responses import respond as native

_FIELD = "cache_salt"


@asynccontextmanager
async def _gateway(data_dir: Path, conninfo: str, **backend: Any) -> AsyncIterator[ScriptedGateway]:
    verb = native() if backend.get("protocol") == "responses" else chat()
    async with (
        Upstream(verb) as upstream,
        scripted_gateway(data_dir, conninfo, upstream, backend=backend) as running,
    ):
        yield running


async def _salt(tenant: ScriptedGateway, field: str = _FIELD, **fields: Any) -> str | None:
    found = await tenant.chat(**fields)
    assert found.status_code == 200, found.text
    return tenant.upstream.requests[-1].json.get(field)


async def test_every_project_has_a_salt_of_its_own(data_dir: Path, conninfo: str) -> None:
    async with _gateway(data_dir, conninfo, fields={"cache_salt": _FIELD}) as one:
        other = await one.with_tenant()
        salts = [await _salt(one), await _salt(one), await _salt(other)]
        assert salts[0] is not None
        assert salts[0] == salts[1]
        assert salts[0] != salts[2]
        # A client's own salt separates its prompts further, but cannot be another project's salt.
        own = [await _salt(one, cache_salt="mine"), await _salt(other, cache_salt="mine")]
        guessed = await _salt(other, cache_salt=salts[0])
        assert len({*salts, *own, guessed}) == 5
        # The Responses face, with a cache key in addition to the salt.
        found = await respond(one, input="Hello", prompt_cache_key="k")
        assert found.status_code == 200, found.text
        sent = one.upstream.requests[-1].json
        assert sent[_FIELD] == salts[0]
        assert sent["prompt_cache_key"] not in (None, "k", salts[0])


async def test_the_backend_names_the_field(data_dir: Path, conninfo: str) -> None:
    async with _gateway(data_dir, conninfo, fields={"cache_salt": "extra_key"}) as one:
        assert await _salt(one, "extra_key") is not None
        assert await _salt(one, _FIELD, cache_salt="mine") is None


async def test_a_backend_of_responses(data_dir: Path, conninfo: str) -> None:
    async with _gateway(
        data_dir, conninfo, fields={"cache_salt": _FIELD}, protocol="responses"
    ) as one:
        other = await one.with_tenant()
        assert None not in {await _salt(one), await _salt(other)}
        assert await _salt(one) != await _salt(other)


async def test_projects_share_a_cache_without_a_field(data_dir: Path, conninfo: str) -> None:
    async with _gateway(data_dir, conninfo) as one:
        assert await _salt(one) is None
        own = await _salt(one, cache_salt="mine")
        assert own not in (None, "mine")


_IMAGE = {"type": "image_url", "image_url": {"url": "https://169.254.169.254/latest"}}
_INLINE = {"type": "image_url", "image_url": {"url": "DATA:image/png;base64,iVBORw0KGgo="}}
_MODALITIES = {"input_modalities": ["text", "image", "audio", "video", "file"]}


async def test_media_by_address_are_refused_where_the_operator_says_so(
    data_dir: Path, conninfo: str
) -> None:
    async with answering_gateway(
        data_dir,
        conninfo,
        backend={"allow_remote_media": False},
        model=_MODALITIES,
    ) as one:
        address = "http://localhost/"
        for part in (
            _IMAGE,
            {"type": "image_url", "image_url": "//example.org/x.png"},
            {"type": "image_url", "image_url": " data:image/png;base64,AA=="},
            {"type": "audio_url", "audio_url": {"url": address}},
            {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
            {"type": "file", "file": {"file_id": "file-1"}},
        ):
            found = await _chat_with(one, part)
            assert found.status_code == 400, found.text
            assert found.json()["error"]["param"] == "messages[0].content[1]"
        refused = await respond(
            one,
            input=[
                {"role": "user", "content": [{"type": "input_image", "image_url": address}]},
            ],
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "input[0].content[0]"
        assert one.upstream.requests == []
        for part in (
            _INLINE,
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "file", "file": {"file_data": "data:text/plain;base64,QQ=="}},
        ):
            assert (await _chat_with(one, part)).status_code == 200


async def test_media_by_address_are_passed_on_by_default(data_dir: Path, conninfo: str) -> None:
    async with answering_gateway(data_dir, conninfo, model=_MODALITIES) as one:
        assert (await _chat_with(one, _IMAGE)).status_code == 200


async def _chat_with(tenant: ScriptedGateway, part: dict[str, Any]) -> httpx2.Response:
    content = [{"type": "text", "text": "What is this?"}, part]
    return await tenant.chat(messages=[{"role": "user", "content": content}])
