"""Tests that `tollkeeper doctor` and `backend try` show the kind of a backend's identity, but no secret."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.providers.identity.token_servers import authority
from tests.support.certificates import make_certificate
from tests.support.program import Outcome, Program, write_config
from tests.support.upstream import Upstream, answer, chat
from tollkeeper.setup.settings import load_settings

_SECRET = "secret-of-the-client"
_SETTINGS = """
[[backends]]
name = "azure"
preset = "azure"
urls = ["{url}"]
credential = "entra"
identity = {{ tenant = "tenant", client = "c", secret = "env:MY_SECRET" }}

[[models]]
id = "example/gpt"
backend = "azure"
upstream_model = "gpt"
context_length = 4096
max_output_length = 1024
"""


@pytest.fixture
def outcomes(program: Program, tmp_path: Path, data_dir: Path) -> object:
    async def run(tokens: Upstream, upstream: Upstream) -> tuple[Outcome, Outcome]:
        more = _SETTINGS.format(url=upstream.url)
        config = write_config(tmp_path, data_dir, more=more)
        assert load_settings(config).backends
        made = program.with_config(config).with_environment(
            MY_SECRET=_SECRET,
            AZURE_AUTHORITY_HOST=tokens.url.removesuffix("/v1"),
            REQUESTS_CA_BUNDLE=str(tmp_path / "upstream.pem"),
        )
        tried = await asyncio.to_thread(made.run, "backend", "try", "azure", "--json")
        examined = await asyncio.to_thread(made.run, "doctor", "--json")
        return tried, examined

    return run


async def test_the_kind_is_shown_and_the_secret_is_not(outcomes: object, tmp_path: Path) -> None:
    tls, _ = make_certificate(tmp_path)
    given = answer({"access_token": "token-1", "expires_in": 3599})
    async with Upstream(authority(given), tls=tls) as tokens, Upstream(chat()) as upstream:
        tried, examined = await outcomes(tokens, upstream)  # type: ignore[operator]
    document = json.loads(tried.out)
    assert document["credential"] == "entra: the client secret of c"
    assert {request.headers["authorization"] for request in upstream.requests} == {"Bearer token-1"}
    rows = {row["name"]: row for row in json.loads(examined.out)["data"]}
    found = rows["backend azure credential"]
    assert found["verdict"] == "ok"
    assert found["detail"].startswith("entra: the client secret of c, good for 359")
    assert "entra" in rows["backend azure preset"]["detail"]
    for shown in (tried.out, tried.err, examined.out, examined.err):
        assert _SECRET not in shown
        assert "token-1" not in shown


async def test_a_token_that_is_refused(outcomes: object, tmp_path: Path) -> None:
    tls, _ = make_certificate(tmp_path)
    words = f"AADSTS7000215: {_SECRET}"
    refused = answer({"error": "invalid_client", "error_description": words}, status=401)
    async with Upstream(authority(refused), tls=tls) as tokens, Upstream(chat()) as upstream:
        tried, examined = await outcomes(tokens, upstream)  # type: ignore[operator]
    assert tried.code == 1
    rows = {row["check"]: row for row in json.loads(tried.out)["data"]}
    assert "credential" in rows["answer"]["detail"]
    found = {row["name"]: row for row in json.loads(examined.out)["data"]}
    detail = found["backend azure credential"]["detail"]
    assert "the token service refused: AADSTS7000215" in detail
    for shown in (tried.out, tried.err, examined.out, examined.err):
        assert _SECRET not in shown
    assert upstream.requests == []
