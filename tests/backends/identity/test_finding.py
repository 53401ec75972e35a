"""Which identity a backend has, by its settings and by the variables of its provider's own tools."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.backends.identity.token_servers import SECRET
from tollkeeper.backends.identities import (
    AwsContainer,
    AwsIdentity,
    AwsInstance,
    AwsKeys,
    AwsProfile,
    AwsWebIdentity,
    EntraApp,
    EntraCertificate,
    EntraFederated,
    EntraManaged,
    EntraSecret,
    GoogleFile,
    GoogleInstance,
    Identity,
)
from tollkeeper.bootstrap.identities import identity_of
from tollkeeper.settings import BackendSettings, Settings, SettingsError, load_settings

_AWS_URL = "https://bedrock-runtime.eu-west-1.amazonaws.com"
_AZURE = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"}
_APP = EntraApp("tenant", "client")
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


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A developer's own profiles are not looked at."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "environment", "found"),
    [
        ({}, {}, GoogleInstance()),
        ({}, {"GCE_METADATA_HOST": "127.0.0.1:9"}, GoogleInstance("127.0.0.1:9")),
        ({}, {"GOOGLE_APPLICATION_CREDENTIALS": "/a.json"}, GoogleFile(Path("/a.json"))),
        (
            {"file": "/b.json", "scope": "s"},
            {"GOOGLE_APPLICATION_CREDENTIALS": "/a.json"},
            GoogleFile(Path("/b.json"), "s"),
        ),
        (
            {"source": "machine"},
            {"GOOGLE_APPLICATION_CREDENTIALS": "/a.json"},
            GoogleInstance(),
        ),
    ],
)
def test_google(settings: dict[str, str], environment: dict[str, str], found: Identity) -> None:
    assert identity_of(_declared("google", **settings), environment) == found


@pytest.mark.parametrize(
    ("settings", "environment", "found"),
    [
        ({}, {}, EntraManaged()),
        ({}, {"AZURE_CLIENT_ID": "id"}, EntraManaged("id")),
        (
            {},
            {"IDENTITY_ENDPOINT": "http://127.0.0.1:9/msi", "IDENTITY_HEADER": "h"},
            EntraManaged("", "http://127.0.0.1:9/msi", "h"),
        ),
        ({}, {**_AZURE, "AZURE_CLIENT_SECRET": SECRET}, EntraSecret(_APP, SECRET)),
        (
            {
                "secret_env": "OTHER",
                "tenant": "t2",
                "client": "c2",
                "authority": "https://a.example",
            },
            {**_AZURE, "OTHER": SECRET},
            EntraSecret(EntraApp("t2", "c2", "https://a.example"), SECRET),
        ),
        ({"secret_file": "/secret"}, _AZURE, EntraSecret(_APP, file=Path("/secret"))),
        (
            {},
            {**_AZURE, "AZURE_CLIENT_CERTIFICATE_PATH": "/c.pem"},
            EntraCertificate(_APP, Path("/c.pem")),
        ),
        (
            {"file": "/c.pem"},
            {**_AZURE, "AZURE_CLIENT_SECRET": SECRET},
            EntraCertificate(_APP, Path("/c.pem")),
        ),
        (
            {},
            {**_AZURE, "AZURE_FEDERATED_TOKEN_FILE": "/token"},
            EntraFederated(_APP, Path("/token")),
        ),
        (
            {"source": "federated"},
            {**_AZURE, "AZURE_FEDERATED_TOKEN_FILE": "/token", "AZURE_CLIENT_SECRET": SECRET},
            EntraFederated(_APP, Path("/token")),
        ),
    ],
)
def test_entra(settings: dict[str, str], environment: dict[str, str], found: Identity) -> None:
    assert identity_of(_declared("entra", **settings), environment) == found


@pytest.mark.parametrize(
    ("settings", "environment", "source"),
    [
        ({}, {}, AwsInstance()),
        (
            {},
            {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]"},
            AwsInstance("http://[fd00:ec2::254]"),
        ),
        ({}, _AWS, AwsKeys("AKIA1", SECRET)),
        ({}, {**_AWS, "AWS_SESSION_TOKEN": "s"}, AwsKeys("AKIA1", SECRET, "s")),
        ({"profile": "p"}, _AWS, AwsProfile(Path("~/.aws/credentials"), "p")),
        ({"file": "/f"}, _AWS, AwsProfile(Path("/f"), "default")),
        (
            {},
            {"AWS_SHARED_CREDENTIALS_FILE": "/f", "AWS_PROFILE": "p"},
            AwsProfile(Path("/f"), "p"),
        ),
        (
            {},
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "arn"},
            AwsWebIdentity("arn", Path("/t"), "https://sts.eu-west-1.amazonaws.com/"),
        ),
        (
            {},
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x"},
            AwsContainer("http://169.254.170.2/v2/x"),
        ),
        (
            {},
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/t",
            },
            AwsContainer("http://169.254.170.23/v1", "", Path("/t")),
        ),
        ({"source": "machine"}, _AWS, AwsInstance()),
    ],
)
def test_aws(settings: dict[str, str], environment: dict[str, str], source: Any) -> None:
    found = identity_of(_declared("sigv4", _AWS_URL, **settings), environment)
    assert isinstance(found, AwsIdentity)
    if isinstance(source, AwsProfile):
        source = AwsProfile(source.file.expanduser(), source.profile)
    assert (found.source, found.region, found.service) == (source, "eu-west-1", "bedrock")


@pytest.mark.parametrize(
    ("credential", "settings", "environment", "reason"),
    [
        ("google", {"source": "file"}, {}, "identity.file: it is not set"),
        ("google", {"source": "container"}, {}, "identity.source: google has file, machine"),
        ("entra", {}, {"AZURE_CLIENT_SECRET": SECRET}, "identity.tenant: it is not set"),
        ("entra", {"secret_env": "GONE"}, _AZURE, "identity.secret_env: .GONE is not set"),
        ("entra", {}, {**_AZURE, "AZURE_CLIENT_SECRET": "two words"}, "printable ASCII"),
        ("entra", {"source": "file"}, _AZURE, "identity.file: it is not set"),
        ("sigv4", {}, _AWS, "identity.region: the address names no region"),
        (
            "sigv4",
            {"source": "environment", "region": "r"},
            {},
            "neither is AWS_ACCESS_KEY_ID",
        ),
        ("sigv4", {"token_file": "/t", "region": "r"}, {}, "neither is AWS_ROLE_ARN"),
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
identity = { file = "client.pem", token_file = "/abs", tenant = "t" }
"""
    )
    (backend,) = load_settings(path).backends
    assert (backend.identity.file, backend.identity.token_file) == (
        str(tmp_path / "client.pem"),
        "/abs",
    )
    assert backend.api_key_env == ""
    # As a worker gets them.
    again = Settings.model_validate({"backends": [backend.model_dump(mode="json")]})
    assert again.backends == (backend,)


@pytest.mark.parametrize("preset", ["vertex", "vertex-gemini"])
def test_a_preset_with_an_identity_takes_a_key_instead(preset: str) -> None:
    urls = ["https://aiplatform.googleapis.com/v1/projects/p/locations/global/x"]
    declared = {"name": "b", "preset": preset, "urls": urls}
    assert BackendSettings.model_validate(declared).credential == "google"
    with_key = BackendSettings.model_validate({**declared, "api_key_file": "/token"})
    assert with_key.credential == "bearer"
