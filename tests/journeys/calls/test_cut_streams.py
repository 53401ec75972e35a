"""Tests a started stream whose request the server cancels: the stream ends with an error record, and
its call continues and is settled."""

from pathlib import Path

import httpx2
import pytest

from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import (
    COST,
    ScriptedGateway,
    chat_body,
    read_stream,
    scripted_gateway,
    scripted_settings,
)
from tests.support.upstream import Upstream
from tollkeeper.entry.descriptors import http_limits
from tollkeeper.http.http_server import HttpServer
from tollkeeper.http.listeners import address_of, bind
from tollkeeper.setup import build_app
from tollkeeper.setup.settings import Settings


async def _cut_stream(
    scripted: ScriptedGateway, settings: Settings, path: str, body: object
) -> httpx2.Response:
    """Returns the response that a client reads if its request is cancelled after the first record."""
    server = HttpServer(build_app(settings, scripted.gateway.services), http_limits())
    listener = bind("127.0.0.1", 0, setting="test")
    await server.start(listener)
    async with (
        httpx2.AsyncClient(base_url=f"http://{address_of(listener)}") as client,
        client.stream("POST", path, json=body, headers=scripted.tenant.as_customer) as answer,
    ):
        pieces = answer.aiter_text()
        text = await anext(pieces)
        await server.drain(0)
        async for piece in pieces:
            text += piece
    return httpx2.Response(answer.status_code, headers=answer.headers, text=text)


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_a_cut_stream_ends_with_its_error_record(
    path: str, data_dir: Path, conninfo: str
) -> None:
    paused = PausedAnswer()
    async with (
        Upstream(paused.verb()) as upstream,
        scripted_gateway(data_dir, conninfo, upstream) as scripted,
    ):
        settings = scripted_settings(data_dir, upstream.url)
        body = chat_body(stream=True)
        if path == "responses":
            body = {"model": body["model"], "input": "Hello", "stream": True, "store": False}
        answer = await _cut_stream(scripted, settings, f"/v1/{path}", body)
        assert answer.status_code == 200
        if path == "responses":
            assert answer.text.count("event: response.failed") == 1
        else:
            stream = read_stream(answer.text)
            assert stream.error is not None
            assert stream.error["code"] == "service_unavailable"
            assert stream.error["request_id"] == answer.headers["x-request-id"]
        # The call itself was not cancelled: it ends normally, and its usage is charged.
        paused.may_end.set()
        assert (await scripted.balance())["settled"] == COST
        assert (await scripted.entry_of(answer)).status == "settled"
