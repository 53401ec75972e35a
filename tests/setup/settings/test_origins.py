"""Tests that the console shows the right origin of each setting's value, and no secret."""

import tomllib
from pathlib import Path

import pytest

from tollkeeper.setup.settings import load_settings
from tollkeeper.setup.settings.origins import SettingOrigin, setting_origins


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
    assert found["server.port"].source == f"{config}, line 3"
    operator = found["operator.port"]
    assert (operator.value, operator.origin) == ("9001", "environment")
    assert operator.source == "TOLLKEEPER_OPERATOR__PORT"
    assert (found["server.host"].value, found["server.host"].origin) == ('"127.0.0.1"', "default")
    assert found["backends[cluster].kind"].origin == "file"


_ENTRIES = """
[[backends]]
name = "groq"
preset = "groq"
retries = 3
[[backends]]
name = "directory"
urls = ["https://example.com/v1"]
credential = "entra"
identity = { tenant = "acme", client = "us", secret = "env:HUNTER2" }
[[models]]
id = "acme/large"
backend = "groq"
upstream_model = "large"
context_length = 4096
max_output_length = 100
pricing = { prompt = "0.000001", completion = "0.000002" }
sampling_limits = { "top k" = 40, penalties = [0.5, true] }
[[models.price_changes]]
valid_from = 2027-01-01
pricing = { prompt = "0.000003" }
"""


def test_an_entry_of_a_list_has_an_origin_for_each_value(config: Path) -> None:
    config.write_text(_ENTRIES)
    found = _origins(config)
    for name in ("preset", "retries"):
        assert found[f"backends[groq].{name}"].origin == "file", name
    assert found["backends[directory].identity"].origin == "file"
    # Line 1 of the file is empty.
    assert found["backends[groq].retries"].source == f"{config}, line 5"
    for name in ("urls", "fields", "api_key_env"):
        setting = found[f"backends[groq].{name}"]
        assert (setting.origin, setting.source) == ("preset", "groq"), name
    for name in ("idle_timeout_s", "connections", "api_key_file", "tls_ca_file", "protocol"):
        assert found[f"backends[groq].{name}"].origin == "default", name
    assert found["models[acme/large].pricing"].origin == "file"
    assert found["models[acme/large].price_changes"].origin == "file"
    assert found["models[acme/large].alternatives"].origin == "default"


def test_values_are_written_as_in_the_file(config: Path) -> None:
    config.write_text(_ENTRIES)
    found = {name: setting.value for name, setting in _origins(config).items()}
    model = "models[acme/large]"
    assert found[f"{model}.pricing"] == '{ prompt = "0.000001", completion = "0.000002" }'
    assert found[f"{model}.sampling_limits"] == '{ "top k" = 40, penalties = [0.5, true] }'
    assert found[f"{model}.price_changes"] == (
        '[{ pricing = { prompt = "0.000003" }, valid_from = 2027-01-01T00:00:00Z }]'
    )
    assert found[f"{model}.options"] == ""
    assert found[f"{model}.is_ready"] == "true"
    assert found["backends[groq].urls"] == '["https://api.groq.com/openai/v1"]'
    assert found["backends[directory].identity"] == (
        '{ tenant = "acme", client = "us", secret = (secret) }'
    )
    assert found["ledger.overage_bound_usd"] == '"10"'
    # The shown values are valid TOML.
    for name, value in found.items():
        assert not value or "(secret)" in value or tomllib.loads(f"value = {value}"), name


def test_a_variable_names_only_what_it_sets(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLKEEPER_SERVER", '{"workers": 2}')
    backends = '[{"name": "cluster", "urls": ["http://10.0.0.6/v1"]}]'
    monkeypatch.setenv("TOLLKEEPER_BACKENDS", backends)
    found = _origins(config)
    workers, port = found["server.workers"], found["server.port"]
    assert (workers.origin, workers.source) == ("environment", "TOLLKEEPER_SERVER")
    assert (port.origin, port.value) == ("file", "9000")
    urls = found["backends[cluster].urls"]
    assert (urls.origin, urls.source) == ("environment", "TOLLKEEPER_BACKENDS")
    # The file sets these values, but the variable replaces the whole list.
    assert found["backends[cluster].api_key_env"].origin == "default"
    assert found["backends[cluster].kind"].origin == "default"


def test_no_secret_is_shown(config: Path) -> None:
    found = _origins(config)
    assert found["database.url"].value == "(secret)"
    assert found["backends[cluster].api_key_env"].value == "(secret)"
    assert found["secrets.master_key"].value == ""
    assert not any("hunter2" in one.value for one in found.values())


def test_every_setting_has_an_origin(config: Path) -> None:
    settings = load_settings(config)
    names = set(_origins(config))
    for section in ("server", "console", "limits", "ledger"):
        for field in type(getattr(settings, section)).model_fields:
            assert f"{section}.{field}" in names
