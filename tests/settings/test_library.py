"""Backends of the kind `library` in the settings: what they need and what they cannot have."""

from pathlib import Path
from typing import Any

import pytest

from tollkeeper.backends.config import OutputBound
from tollkeeper.bootstrap import bridge as bridge_module
from tollkeeper.bootstrap import build_backends, build_bridge, build_catalog
from tollkeeper.bootstrap.backends import backend_config
from tollkeeper.embedded.bridge_address import BridgeAddress
from tollkeeper.settings import Settings, SettingsError

_ADDRESS = BridgeAddress("http://127.0.0.1:1", "bridge-key")


def _settings(library: dict[str, Any] | None = None, **changes: Any) -> Settings:
    declared = {"name": "co here/x", "kind": "library", "provider": "cohere", **changes}
    return Settings.model_validate({"backends": [declared], "library": library or {}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provider": ""}, "needs a provider"),
        ({"provider": "Co here"}, "provider"),
        ({"urls": ["http://a", "http://b"]}, "one at most"),
        ({"protocol": "messages"}, "speaks 'chat' only"),
        ({"credential": "x-api-key"}, "the library decides"),
        ({"tokenizer": "vllm"}, "counts no tokens"),
        ({"headers": {"x-a": "b"}}, "headers: a backend of kind 'library' has none"),
        ({"preset": "cohere"}, "preset: a backend of kind 'library' has none"),
        ({"tokenize_path": "/tokenize"}, "tokenize_path: a backend of kind 'library' has none"),
        ({"kind": "openai", "urls": ["http://a"]}, "only a backend of kind 'library'"),
    ],
)
def test_what_it_cannot_have_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _settings(**changes)


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "library_is_installed", lambda: False)
    for build in (build_bridge, lambda settings: build_backends(settings, None)):
        with pytest.raises(SettingsError, match=r"pip install 'tollkeeper\[providers\]'"):
            build(_settings())


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    with pytest.raises(SettingsError, match=r"library\.python: .* does not exist"):
        build_bridge(_settings({"python": missing}))


def test_a_missing_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "library_is_installed", lambda: True)
    monkeypatch.delenv("NOBODY_HAS_THIS", raising=False)
    with pytest.raises(SettingsError, match="NOBODY_HAS_THIS is not set"):
        build_bridge(_settings(api_key_env="NOBODY_HAS_THIS"))
    with pytest.raises(SettingsError, match="api_key_file"):
        build_bridge(_settings(api_key_file=str(tmp_path / "none")))


def test_the_bridge_gets_the_key_and_the_workers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "library_is_installed", lambda: True)
    key_file = tmp_path / "key"
    key_file.write_text("provider-key\n")
    settings = _settings(api_key_file=str(key_file), urls=["https://proxy.example"])
    bridge = build_bridge(settings)
    assert bridge is not None
    (bridged,) = bridge.options.backends
    assert (bridged.api_key, bridged.base_url) == ("provider-key", "https://proxy.example")
    assert "provider-key" not in repr(bridge.options)
    config = backend_config(settings.backends[0], None, _ADDRESS)
    assert (config.urls, config.api_key) == (("http://127.0.0.1:1/co%20here%2Fx/v1",), "bridge-key")
    assert config.api_key_file is None
    assert config.output_bound is OutputBound.MAX_TOKENS
    assert config.names_unsupported
    assert "bridge-key" not in repr(_ADDRESS)


def test_without_such_a_backend_there_is_no_bridge() -> None:
    backend = {"name": "b", "kind": "openai", "urls": ["http://a/v1"]}
    assert build_bridge(Settings.model_validate({"backends": [backend]})) is None


def test_its_models_take_no_addresses() -> None:
    model = {
        "id": "m",
        "backend": "b",
        "upstream_model": "m",
        "context_length": 10,
        "max_output_length": 10,
        "pricing": {"prompt": "0", "completion": "0"},
    }
    backend = {"name": "b", "kind": "library", "provider": "gemini"}
    settings = Settings.model_validate({"backends": [backend], "models": [model]})
    (built,) = build_catalog(settings).models
    assert not built.allows_remote_media
