"""Helpers that send a question in chat or Responses to the gateway, and read the text of the answer."""

from typing import Any

import httpx2
import pytest

from tests.support.responses_answers import read_events, respond, retell
from tests.support.scripted_gateway import ScriptedGateway, read_stream

BOTH = pytest.mark.parametrize("streamed", [False, True])
PROTOCOLS = pytest.mark.parametrize("protocol", ["chat", "responses"])


async def ask(scripted: ScriptedGateway, protocol: str, **fields: Any) -> httpx2.Response:
    return await (scripted.chat(**fields) if protocol == "chat" else respond(scripted, **fields))


def said(found: httpx2.Response, protocol: str, *, streamed: bool) -> str:
    """Checks that the answer succeeded, and returns its text."""
    assert found.status_code == 200, found.text
    if protocol == "chat" and streamed:
        chat_stream = read_stream(found.text)
        assert chat_stream.done
        return chat_stream.text
    if protocol == "chat":
        text: str = found.json()["choices"][0]["message"]["content"]
        return text
    if streamed:
        events, done = read_events(found.text)
        assert done
        return "".join(retell(events).texts.values())
    [item] = [item for item in found.json()["output"] if item["type"] == "message"]
    return "".join(part["text"] for part in item["content"])
