"""Tests which identity a backend gets from its settings and the environment variables of the provider."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.providers.identity.token_servers import SECRET
from tollkeeper.providers.identities import AwsIdentity, EntraIdentity, GoogleIdentity, Identity
from tollkeeper.setup import identities
from tollkeeper.setup.identities import identity_of
from tollkeeper.setup.settings import BackendSettings, Settings, SettingsError, load_settings

_AWS_URL = "https://bedrock-runtime.eu-west-1.amazonaws.com"
_AZURE = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"}
_AWS = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": SECRET}


def _declared(credential: str, *urls: str, **identity: Any) -> BackendSettings:
    return BackendSettings.model_validate(
        {
            "name": "b",
            "urls": urls or ("https://provider.example/v1",),
            "credential": credential,
            "identity": identity,
        }
    )


@pytest.mark.parametrize(
    ("credential", "settings", "environment", "found"),
    [
        ("google", {}, {}, GoogleIdentity()),
        ("google", {"file": "/b.json", "scope": "s"}, {}, GoogleIdentity("/b.json", "s")),
        ("entra", {}, _AZURE, EntraIdentity()),
        ("entra", {"client": "id"}, {}, EntraIdentity(client="id")),
        (
            "entra",
            {"secret": "env:OTHER", "tenant": "t2", "client": "c2"},
            {**_AZURE, "OTHER": SECRET},
            EntraIdentity("t2", "c2", SECRET),
        ),
        (
            "entra",
            {"secret": "file:/secret"},
            _AZURE,
            EntraIdentity("tenant", "client", secret_file="/secret"),
        ),
        (
            "entra",
            {"file": "/c.pem"},
            _AZURE,
            EntraIdentity("tenant", "client", certificate_file="/c.pem"),
        ),
        ("sigv4", {}, _AWS, AwsIdentity("eu-west-1")),
        ("sigv4", {"region": "us-east-1"}, {}, AwsIdentity("us-east-1")),
        ("sigv4", {}, {"AWS_REGION": "us-east-1"}, AwsIdentity("us-east-1")),
        ("sigv4", {"profile": "p", "file": "/f"}, {}, AwsIdentity("eu-west-1", "p", "/f")),
    ],
)
def test_an_identity_by_its_settings(
    credential: str, settings: dict[str, str], environment: dict[str, str], found: Identity
) -> None:
    assert identity_of(_declared(credential, _AWS_URL, **settings), environment) == found


@pytest.mark.parametrize(
    ("credential", "module", "extra"),
    [
        ("google", "google.auth", "google"),
        ("entra", "azure", "azure"),
        ("sigv4", "botocore", "aws"),
    ],
)
def test_a_missing_library_names_its_extra(
    credential: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python returns None for a module that is not installed.
    monkeypatch.setattr(
        identities, "find_spec", lambda name: None if name.startswith(module) else find_spec(name)
    )
    with pytest.raises(
        SettingsError, match=rf"backends 'b': .*pip install 'tollkeeper\[{extra}\]'"
    ):
        identity_of(_declared(credential, _AWS_URL), {})


@pytest.mark.parametrize(
    ("credential", "settings", "environment", "reason"),
    [
        ("entra", {"secret": "env:GONE"}, _AZURE, "identity.secret: .GONE is not set"),
        ("entra", {"secret": "env:S"}, {"S": SECRET}, "identity.tenant: it is not set"),
        ("entra", {"secret": "env:S"}, {**_AZURE, "S": "two words"}, "printable ASCII"),
        ("entra", {"file": "/c.pem"}, {}, "identity.tenant: it is not set"),
        ("sigv4", {}, _AWS, "identity.region: the address names no region"),
    ],
)
def test_what_is_missing_is_named(
    credential: str, settings: dict[str, str], environment: dict[str, str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=f"backends 'b': .*{reason}") as error:
        identity_of(_declared(credential, **settings), environment)
    assert SECRET not in str(error.value)


def test_a_key_is_no_identity() -> None:
    assert identity_of(_declared("bearer"), _AWS) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"credential": "sigv4", "api_key_env": "KEY"}, "has no api_key_env"),
        ({"identity": {"profile": "p"}}, "only the credentials entra, google, sigv4"),
        ({"credential": "sigv4", "identity": {"region": "EU"}}, "region"),
        ({"credential": "sigv4", "identity": {"password": "x"}}, "password"),
        ({"headers": {"x-amz-date": "x"}}, "x-amz-date is written by the gateway itself"),
    ],
)
def test_settings_that_do_not_fit(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        BackendSettings.model_validate({"name": "b", "urls": ["http://a/v1"], **changes})


def test_files_are_beside_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "tollkeeper.toml"
    path.write_text(
        """
[[backends]]
name = "b"
preset = "azure"
urls = ["https://r.openai.azure.com/openai/v1"]
credential = "entra"
identity = { file = "client.pem", secret = "file:abs", tenant = "t" }
"""
    )
    (backend,) = load_settings(path).backends
    assert (backend.identity.file, backend.identity.secret) == (
        str(tmp_path / "client.pem"),
        f"file:{tmp_path / 'abs'}",
    )
    assert backend.api_key_env == ""
    # A worker gets the settings in this form.
    again = Settings.model_validate({"backends": [backend.model_dump(mode="json")]})
    assert again.backends == (backend,)


@pytest.mark.parametrize("preset", ["vertex", "vertex-gemini"])
def test_a_preset_with_an_identity_takes_a_key_instead(preset: str) -> None:
    urls = ["https://aiplatform.googleapis.com/v1/projects/p/locations/global/x"]
    declared = {"name": "b", "preset": preset, "urls": urls}
    assert BackendSettings.model_validate(declared).credential == "google"
    with_key = BackendSettings.model_validate({**declared, "api_key_file": "/token"})
    assert with_key.credential == "bearer"
