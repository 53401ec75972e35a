"""Where each value of the settings comes from, as the console and its readers see it."""

from pathlib import Path

import pytest

from tollkeeper.settings import load_settings
from tollkeeper.settings.origins import SettingOrigin, setting_origins


def _origins(config: Path) -> dict[str, SettingOrigin]:
    return {found.name: found for found in setting_origins(load_settings(config), config)}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tollkeeper.toml"
    path.write_text(
        """
[server]
port = 9000
[database]
url = "postgresql://me:hunter2@db/books"
[[backends]]
name = "cluster"
kind = "openai"
urls = ["http://user:hunter2@10.0.0.5/v1"]
api_key_env = "CLUSTER_KEY"
"""
    )
    monkeypatch.setenv("TOLLKEEPER_OPERATOR__PORT", "9001")
    return path


def test_default_file_and_environment(config: Path) -> None:
    found = _origins(config)
    assert (found["server.port"].value, found["server.port"].origin) == ("9000", "file")
    assert found["server.port"].source == str(config)
    operator = found["operator.port"]
    assert (operator.value, operator.origin) == ("9001", "environment")
    assert operator.source == "TOLLKEEPER_OPERATOR__PORT"
    assert (found["server.host"].value, found["server.host"].origin) == ("127.0.0.1", "default")
    assert found["backends[cluster].kind"].origin == "file"


def test_no_secret_is_shown(config: Path) -> None:
    found = _origins(config)
    assert found["database.url"].value == "(secret)"
    assert found["backends[cluster].api_key_env"].value == "(secret)"
    assert found["secrets.master_key_file"].value == ""
    assert not any("hunter2" in one.value for one in found.values())


def test_every_setting_has_an_origin(config: Path) -> None:
    settings = load_settings(config)
    names = set(_origins(config))
    for section in ("server", "console", "limits", "ledger"):
        for field in type(getattr(settings, section)).model_fields:
            assert f"{section}.{field}" in names
