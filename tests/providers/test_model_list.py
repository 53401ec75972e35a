"""Tests how backends of each protocol are asked for their models, and how names are compared."""

from typing import Any

from tests.support.backend_calls import KEY, make_config
from tests.support.tables import each
from tests.support.upstream import Upstream, Verb, answer, chat, refuse
from tollkeeper.providers.config import WireProtocol
from tollkeeper.providers.credentials import CredentialKind
from tollkeeper.providers.model_list import ListOutcome, ModelList, list_models

_GOOGLES = {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}


async def _asked(verb: Verb, **changes: Any) -> tuple[ModelList, Upstream]:
    async with Upstream(chat()) as upstream:
        upstream.list_models = verb
        return await list_models(make_config(upstream.url, **changes), upstream.url), upstream


@each(
    ("protocol", "credential", "path", "header"),
    [
        ("chat", "bearer", "/v1/models", "authorization"),
        ("responses", "api-key", "/v1/models", "api-key"),
        ("messages", "x-api-key", "/v1/models?limit=1000", "x-api-key"),
        ("gemini", "x-goog-api-key", "/v1/models?pageSize=1000", "x-goog-api-key"),
    ],
)
async def test_each_protocol_has_its_request(
    protocol: str, credential: str, path: str, header: str
) -> None:
    listed = answer({"data": [{"id": "a"}, {"id": 7}, {"id": "b\x1b"}, "c", {}]})
    if protocol == "gemini":
        listed = answer({"models": [{"name": "models/a"}, {"name": None}]})
    changes = {"protocol": WireProtocol(protocol), "credential": CredentialKind(credential)}
    found, upstream = await _asked(listed, **changes)
    assert (found.outcome, found.names) == (ListOutcome.LISTED, frozenset("a"))
    [request] = upstream.list_requests
    assert request.path == path
    assert request.headers[header].endswith(KEY)
    version = request.headers.get("anthropic-version")
    assert (version is not None) is (protocol == "messages")


@each(
    ("verb", "outcome"),
    [
        (answer([{"id": "a"}]), ListOutcome.LISTED),
        (refuse(401), ListOutcome.KEY_REFUSED),
        (answer(_GOOGLES, status=400), ListOutcome.KEY_REFUSED),
        (refuse(400), ListOutcome.FAILED),
        (refuse(404), ListOutcome.NO_LIST),
        (answer(b"<html>", content_type="text/html"), ListOutcome.NO_LIST),
        (answer({"data": {}}), ListOutcome.NO_LIST),
        (answer(b"[" * 100_000), ListOutcome.NO_LIST),
    ],
)
async def test_what_a_backend_may_say(verb: Verb, outcome: ListOutcome) -> None:
    found, _ = await _asked(verb)
    assert found.outcome is outcome


@each("protocol", ["converse", "bedrock_messages", "vertex_messages", "vertex_gemini"])
async def test_a_protocol_without_a_list_is_not_asked(protocol: str) -> None:
    found, upstream = await _asked(refuse(500), protocol=WireProtocol(protocol))
    assert found == ModelList(ListOutcome.NOT_ASKED)
    assert upstream.connections == 0


@each(
    ("name", "listed"),
    [
        ("claude-5", True),
        ("claude-5-20260801", True),
        ("claude-5-latest", True),
        ("llama3", True),
        ("llama3:8b", True),
        ("openai/gpt-9:online", True),
        ("claude", False),
        ("gpt-5", True),
        ("gpt-9", False),
        ("claude-51", False),
        ("llama3:8", False),
    ],
)
def test_names_and_their_aliases(name: str, listed: bool) -> None:
    names = frozenset({"claude-5-20260801", "llama3:8b", "openai/gpt-9", "gpt-5-2026-08-01"})
    assert ModelList(ListOutcome.LISTED, names=names).has(name) is listed
    assert ModelList(ListOutcome.LISTED, names=names, is_complete=False).has(name)
