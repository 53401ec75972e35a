"""Tests that every setting of a backend reaches the code that uses it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.backend_calls import make, make_call
from tests.support.certificates import make_certificate
from tests.support.constants import constants
from tests.support.scripted_gateway import scripted_gateway
from tests.support.tables import each
from tests.support.upstream import Peer, Upstream, chat
from tollkeeper.calls.token_counting import TOKENIZER_TIMEOUT_S
from tollkeeper.providers.config import BackendConfig, Tokenizer, WireProtocol
from tollkeeper.setup import build_backends
from tollkeeper.setup.backends import backend_config
from tollkeeper.setup.embedded.engine_address import EngineAddress
from tollkeeper.setup.settings import BackendSettings, Settings, SettingsError, load_settings

_URL = "https://127.0.0.1:9/v1"
# A setting, its value, a field of the backend's configuration, and the field's expected value.
_REACHES: list[tuple[str, object, str, object]] = [
    ("name", "other", "name", "other"),
    ("urls", ["http://a/v1", "http://b/v1"], "urls", ("http://a/v1", "http://b/v1")),
    ("protocol", "responses", "protocol", WireProtocol.RESPONSES),
    ("tls_ca_file", "/ca.pem", "tls_ca_file", "/ca.pem"),
    ("connect_timeout_s", 7, "connect_timeout_s", 7),
    ("idle_timeout_s", 7, "idle_timeout_s", 7),
    ("retries", 7, "retries", 7),
    ("tokenize_path", "/count", "tokenize_path", "/count"),
    ("tokenize_path", "/count", "tokenizer", Tokenizer.VLLM),
    ("connections", 7, "connections_max", 7),
    ("fields", {"seed": "random_seed"}, "renamed_fields", {"seed": "random_seed"}),
    ("fields", {"user": ""}, "omitted_fields", ("user",)),
    ("fields", {"stream_options": ""}, "include_usage", False),
    ("fields", {"logit_bias": False}, "refused_fields", ("logit_bias",)),
    (
        "fields",
        {"max_tokens": "max_completion_tokens"},
        "output_limit_field",
        "max_completion_tokens",
    ),
    ("fields", {"max_completion_tokens": "max_tokens"}, "output_limit_field", "max_tokens"),
]


def _declared(**changes: Any) -> BackendSettings:
    declared = {"name": "b", "kind": "openai", "urls": [_URL], **changes}
    return BackendSettings.model_validate(declared)


def _config(**changes: Any) -> BackendConfig:
    return backend_config(_declared(**changes), None)


@each(("setting", "value", "field", "expected"), _REACHES)
def test_a_setting_reaches_the_backend(
    setting: str, value: object, field: str, expected: object
) -> None:
    assert getattr(_config(), field) != expected
    assert getattr(_config(**{setting: value}), field) == expected


def test_a_count_does_not_take_longer_than_a_call_waits_for_it() -> None:
    assert _config().tokenize_timeout_s <= TOKENIZER_TIMEOUT_S


def test_fields_of_a_preset_are_changed_one_by_one() -> None:
    fields = _declared(preset="mistral", fields={"seed": "seed", "top_k": False}).fields
    assert (fields["seed"], fields["top_k"], fields["logit_bias"]) == ("seed", False, False)
    assert (fields["stream_options"], fields["max_completion_tokens"]) == ("", "max_tokens")


def test_the_embedded_engine() -> None:
    declared = BackendSettings(name="local", kind="embedded")
    config = backend_config(declared, EngineAddress("http://127.0.0.1:1/v1", "key"))
    assert (config.urls, config.api_key) == (("http://127.0.0.1:1/v1",), "key")
    assert config.always_stream
    assert config.tokenizer is Tokenizer.LLAMA_CPP


def _settings(url: str, **changes: Any) -> Settings:
    backend = {"name": "b", "kind": "openai", "urls": [url], **changes}
    return Settings.model_validate({"backends": [backend]})


@each("allowed", [1, 3])
async def test_as_many_parts_at_once_as_allowed(allowed: int) -> None:
    at_once = most = 0

    async def counted(peer: Peer) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        await chat()(peer)

    async with Upstream(counted) as upstream:
        with constants({"setup.backends._PARTS_AT_ONCE": allowed}):
            settings = _settings(upstream.url, native_n=False)
            backend = build_backends(settings, None)["b"]
        (await make(backend, make_call(choices=9))).check_complete(choices=9)
        await backend.close()
    assert most == allowed


async def test_a_gateway_trusts_the_certificates_of_its_file(
    tmp_path: Path, data_dir: Path, conninfo: str
) -> None:
    context, ca_file = make_certificate(tmp_path)
    async with Upstream(chat(), tls=context) as upstream:
        assert upstream.url.startswith("https://")
        async with scripted_gateway(data_dir, conninfo, upstream) as scripted:
            refused = await scripted.chat()
            assert refused.status_code == 502
            assert upstream.requests == []
        async with scripted_gateway(
            data_dir, conninfo, upstream, backend={"tls_ca_file": str(ca_file)}
        ) as scripted:
            assert (await scripted.chat()).status_code == 200
            assert (await scripted.chat(stream=True)).status_code == 200
        assert len(upstream.requests) == 2


def test_the_file_is_found_beside_the_settings(tmp_path: Path) -> None:
    _, ca_file = make_certificate(tmp_path)
    path = tmp_path / "tollkeeper.toml"
    path.write_text(
        f"[[backends]]\nname = 'b'\nkind = 'openai'\nurls = ['{_URL}']\n"
        f"tls_ca_file = '{ca_file.name}'\n"
    )
    settings = load_settings(path)
    assert settings.backends[0].tls_ca_file == str(ca_file)
    build_backends(settings, None)


@each("content", [None, "", "no certificate"])
def test_a_file_without_certificates_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=r"'b': tls_ca_file: .*ca\.pem cannot be used"):
        build_backends(_settings(_URL, tls_ca_file=str(path)), None)


def test_a_file_for_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="tls_ca_file: none of the urls"):
        _declared(urls=["http://host/v1"], tls_ca_file="/ca.pem")
