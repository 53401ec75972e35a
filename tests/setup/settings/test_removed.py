"""Tests that the error message for a removed setting names its replacement."""

from pathlib import Path

import pytest

from tollkeeper.setup.settings import SettingsError, load_settings


def _rejection(folder: Path, text: str) -> str:
    path = folder / "tollkeeper.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as rejected:
        load_settings(path)
    return str(rejected.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[[backends]]\nname = "b"\nkind = "library"',
            "backends 'b': kind = 'library': was removed; use kind = \"openai\" with a preset",
        ),
        (
            '[[backends]]\nname = "b"\nprovider = "cohere"\nurls = ["http://a"]',
            "backends 'b': provider: was removed; use preset",
        ),
        ("[library]\ncalls = 3", "library: was removed; backends with a preset"),
        ("[messages]\nweb_tool_aliases = []", "messages: was removed; all published names"),
        (
            "[server]\nheader_bytes = 4096",
            "server.header_bytes: was removed; the gateway has a fixed",
        ),
        (
            '[policy]\nunreadable_images = "deny"',
            "policy.unreadable_images: was removed; list the content in policy.denied_content",
        ),
        (
            "[telemetry]\nsample_ratio = 0.1",
            "telemetry: was removed; set OpenTelemetry's own variables, OTEL_",
        ),
        (
            '[secrets]\nmaster_key_env = "MASTER_KEY"',
            'secrets.master_key_env: was removed; write master_key = "env:NAME"',
        ),
        ("[server]\nkeep_alive_s = 75", "was removed; the gateway has a fixed value"),
        (
            '[console]\ntls_key_file = "key.pem"',
            "console.tls_key_file: was removed; write tls_files = [CERTIFICATE, KEY]",
        ),
        ("[limits]\nbodies_bytes = 1000", "was removed; it is sixteen times body_bytes"),
        ("[ledger]\nverify_every_hours = 24", "was removed; the ledger is verified every day"),
        (
            '[alerts]\nwebhook_url = "https://a"',
            'alerts.webhook_url: was removed; write webhook = { url = "https://...", secret =',
        ),
        (
            '[alerts]\nwebhook_secret = "env:A"',
            'alerts.webhook_secret: was removed; write webhook = { url = "https://...", secret =',
        ),
        ('[logs]\nformat = "json"', "logs.format: was removed; lines are text on a terminal"),
        (
            '[console]\ndocs_url = "https://a"',
            "was removed; the console page Alerts names the section",
        ),
        (
            '[console.sign_in]\npublic_url = "https://a"',
            "sign_in.public_url: was removed; list the host name of the URL in console.allowed_hosts",
        ),
        (
            '[console.sign_in]\nscopes = ["openid"]',
            "sign_in.scopes: was removed; the console always",
        ),
        (
            '[console.sign_in]\norganization_claim = "org"',
            "was removed; the claim has to be called organization",
        ),
        (
            '[[models]]\nid = "m"\nweight = 2',
            "weight: was removed; the model's own backend has weight 1",
        ),
        (
            '[[backends]]\nname = "b"\nurls = ["http://a"]\nidentity = { secret_env = "A" }',
            'secret_env: was removed; write secret = "env:NAME"',
        ),
        (
            '[[backends]]\nname = "b"\nurls = ["http://a"]\nrefused_fields = ["seed"]',
            "backends 'b': refused_fields: was removed; write fields = { name = false }",
        ),
    ],
)
def test_a_removed_setting_names_its_replacement(tmp_path: Path, text: str, said: str) -> None:
    rejection = _rejection(tmp_path, text)
    assert said in rejection
    assert "line " in rejection


def test_a_variable_of_a_removed_section_names_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLKEEPER_LIBRARY__PYTHON", "/usr/bin/python3")
    rejection = _rejection(tmp_path, "")
    assert rejection.startswith("TOLLKEEPER_LIBRARY__PYTHON: was removed; backends with a preset")
