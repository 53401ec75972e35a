"""Tests credentials: which header contains the key, and how a key changes while the gateway runs."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from tests.support.backend_calls import KEY, make, make_call, make_config, routed
from tests.support.tables import each
from tests.support.upstream import Upstream, chat, refuse
from tollkeeper.core.errors import ProviderRejected
from tollkeeper.providers.credentials import CredentialKind, KeyInFile, key_header
from tollkeeper.setup import build_backends
from tollkeeper.setup.settings import BackendSettings, Settings, SettingsError

_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


@each(
    ("kind", "header", "value"),
    [
        (CredentialKind.BEARER, "authorization", f"Bearer {KEY}"),
        (CredentialKind.X_API_KEY, "x-api-key", KEY),
        (CredentialKind.API_KEY, "api-key", KEY),
        (CredentialKind.X_GOOG_API_KEY, "x-goog-api-key", KEY),
    ],
)
async def test_a_kind_is_one_header(kind: CredentialKind, header: str, value: str) -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url, credential=kind) as backend:
        (await make(backend, make_call())).check_complete()
        (await make(backend, make_call(streamed=True))).check_complete()
    for request in upstream.requests:
        sent = {name: request.headers[name] for name in _KEY_HEADERS if name in request.headers}
        assert sent == {header: value}


async def test_no_key_is_no_header() -> None:
    async with Upstream(chat()) as upstream, routed(upstream.url, api_key=None) as backend:
        (await make(backend, make_call())).check_complete()
    assert not set(_KEY_HEADERS) & set(upstream.requests[0].headers)


async def test_further_headers_are_sent() -> None:
    async with (
        Upstream(chat()) as upstream,
        routed(upstream.url, headers={"openai-organization": "org 1"}) as backend,
    ):
        (await make(backend, make_call())).check_complete()
    assert upstream.requests[0].headers["openai-organization"] == "org 1"


async def test_a_changed_file_changes_the_key_of_the_next_call(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first-key\n")
    async with (
        Upstream(chat()) as upstream,
        routed(upstream.url, api_key="first-key", api_key_file=str(file)) as backend,
    ):
        await make(backend, make_call())
        file.write_text("second-key\n")
        await make(backend, make_call())
        # Some tools rotate a key by renaming: another file then has the same name.
        (tmp_path / "new").write_text("third-key")
        (tmp_path / "new").rename(file)
        await make(backend, make_call())
    sent = [request.headers["authorization"] for request in upstream.requests]
    assert sent == ["Bearer first-key", "Bearer second-key", "Bearer third-key"]


@pytest.mark.parametrize("content", [None, "", "two words", "schlüssel", "line\nline"])
async def test_the_last_key_stays_while_the_file_holds_none(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "key"
    file.write_text("first-key")
    async with (
        Upstream(chat()) as upstream,
        routed(upstream.url, api_key="first-key", api_key_file=str(file)) as backend,
    ):
        await make(backend, make_call())
        file.unlink()
        if content is not None:
            file.write_text(content)
        with capture_logs() as logs:
            await make(backend, make_call())
        file.unlink(missing_ok=True)
        file.write_text("second-key")
        await make(backend, make_call())
    sent = [request.headers["authorization"] for request in upstream.requests]
    assert sent == ["Bearer first-key", "Bearer first-key", "Bearer second-key"]
    assert [entry["event"] for entry in logs] == ["credential kept"]
    assert not content or content not in str(logs)


async def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    """Messages contain neither the present key nor the previous key, which a backend may still quote."""
    file = tmp_path / "key"
    file.write_text("first-key")
    quoting = refuse(400, "the keys first-key and second-key are not valid")
    async with (
        Upstream(quoting) as upstream,
        routed(upstream.url, api_key="first-key", api_key_file=str(file)) as backend,
    ):
        await make(backend, make_call())
        file.write_text("second-key")
        with capture_logs() as logs:
            outcome = await make(backend, make_call())
    assert isinstance(outcome.error, ProviderRejected)
    assert outcome.error.message.endswith("the keys [removed] and [removed] are not valid")
    assert "second-key" not in str(logs)
    assert "first-key" not in repr(make_config("http://a/v1", api_key="first-key"))
    assert "first-key" not in repr(KeyInFile(CredentialKind.BEARER, file, "first-key"))


@each("key", ["", "two words", "a\r\nb: c", "schlüssel", "\x00"])
def test_a_key_that_is_no_header_value_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        key_header(CredentialKind.X_API_KEY, key)


def _settings(**changes: Any) -> Settings:
    backend = {"name": "b", "kind": "openai", "urls": ["http://127.0.0.1:9/v1"], **changes}
    return Settings.model_validate({"backends": [backend]})


@pytest.mark.parametrize("content", [None, "", "a b"])
def test_a_gateway_does_not_start_without_the_key_of_its_file(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=r"'b': api_key_file: .*key: it "):
        build_backends(_settings(api_key_file=str(file)), None)


@each("name", ["authorization", "host", "content-length", "x-api-key"])
def test_headers_of_the_gateway_are_not_set(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} is written by the gateway itself"):
        BackendSettings.model_validate(
            {"name": "b", "kind": "openai", "urls": ["http://a/v1"], "headers": {name: "x"}}
        )


@each(("name", "value"), [("x-a", "b\r\nc: d"), ("X-A", "b"), ("x a", "b")])
def test_headers_that_are_none_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValidationError):
        _settings(headers={name: value})
