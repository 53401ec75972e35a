"""Tests that error messages name the wrong setting, and never contain a value that may be secret."""

import logging
import os
from pathlib import Path

import pytest

from tests.support.tables import each
from tests.support.warm_program import run_warm
from tollkeeper.core.errors import Unavailable
from tollkeeper.database.database import Database
from tollkeeper.setup import build_backends
from tollkeeper.setup.settings import Settings, SettingsError, load_settings

_SECRET = "hunter2"
_URL = f"postgresql://user:{_SECRET}@db.example/books"
_DATABASE = f"[database]\nurl = '{_URL}'\n"
_BACKEND = "[[backends]]\nname = 'b'\nkind = 'openai'\nurls = ['{url}']\n"
_MODEL = (
    "[[models]]\nid = 'm'\nbackend = '{backend}'\nupstream_model = 'u'\n"
    "context_length = 8\nmax_output_length = 4\n"
)


def _refusal(folder: Path, text: str) -> str:
    path = folder / "tollkeeper.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        build_backends(load_settings(path), None)
    return str(refused.value)


def _assert_names_only(message: str, *names: str) -> None:
    for name in names:
        assert name in message
    for secret in (_SECRET, "hunter", "ter2"):
        assert secret not in message, message


@each(
    ("wrong", "name"),
    [
        (_MODEL.format(backend="nobody"), "models"),
        ("[judge]\nbackend = 'nobody'\nmodel = 'm'\n", "judge.backend"),
        (2 * _BACKEND.format(url="http://host/v1"), "backends"),
        ("[server]\nport = -1\n", "server.port"),
        ("[srever]\nport = 1\n", "srever"),
    ],
    ids=["model", "judge", "backends", "value", "section"],
)
def test_a_wrong_setting_elsewhere(tmp_path: Path, wrong: str, name: str) -> None:
    _assert_names_only(_refusal(tmp_path, _DATABASE + wrong), name)


@each(
    "url",
    [
        f"mysql://user:{_SECRET}@host/db",
        f"postgresql+psycopg://user:{_SECRET}/db",
        f"user:{_SECRET}@host",
        _SECRET,
        "postgresql://user:hunter%zz@host/db",
        "postgresql://user:hun ter2@host/db",
        f"postgresql://user:{_SECRET}@[::1/db",
        "postgresql://user:hun@ter2@host/db",
        "postgresql://user:hun/ter2@host/db",
        "postgresql://user:hun?x@ter2@host/db",
        f"postgresql://{_SECRET}:{_SECRET}/db",
        f"postgresql://host/db?{_SECRET}=1",
        f"postgresql://host/db?password={_SECRET}&sslmode",
    ],
)
def test_a_malformed_database_url(tmp_path: Path, url: str) -> None:
    _assert_names_only(_refusal(tmp_path, f"[database]\nurl = '{url}'\n"), "database.url")


@each(
    "url",
    [
        _URL,
        "postgres://user@host:5432,other:5433/db?sslmode=require&target_session_attrs=any",
        "postgresql://user:p%40ss%2Fw%3Ard@[::1]:5432/books%40home",
        "postgresql://user:what?ever@host/db",
        "postgresql:///db?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/db",
        "postgresql://",
    ],
)
def test_a_right_database_url(url: str) -> None:
    assert Settings.model_validate({"database": {"url": url}}).database.url == url


@each(
    ("text", "name"),
    [
        (f"[database]\nurl = ['{_URL}']\n", "database.url"),
        (f"[database]\nurl = {{ of = '{_URL}' }}\n", "database.url"),
        (f"database = '{_URL}'\n", "database"),
        (f"database = ['{_URL}']\n", "database"),
        (f"[database]\npassword = '{_SECRET}'\n", "database.password"),
        (f"[secrets]\nmaster_key = '{_SECRET}'\n", "secrets.master_key"),
        (f"[secrets]\nmaster_key = 'env:{_SECRET}-{_SECRET}'\n", "secrets.master_key"),
        (f"[secrets]\nmaster_key = ['{_SECRET}']\n", "secrets.master_key"),
        (f"api_key = '{_SECRET}'\n", "api_key"),
        (f"[console]\ngateway_url = 'https://me:{_SECRET}@host'\n", "console.gateway_url"),
        (f"[console]\ngateway_url = 'https://host?key={_SECRET}'\n", "console.gateway_url"),
        (f"[alerts.webhook]\nurl = 'https://{_SECRET}@host'\n", "alerts.webhook.url"),
        (f"[alerts.webhook]\nurl = 'https://host:x/{_SECRET}'\n", "alerts.webhook.url"),
    ],
)
def test_a_secret_in_a_wrong_place(tmp_path: Path, text: str, name: str) -> None:
    _assert_names_only(_refusal(tmp_path, text), name)


@each(
    ("line", "name"),
    [
        (f"api_key = '{_SECRET}'", "backends 'b': api_key"),
        (f"api_key_env = 'sk-{_SECRET}'", "backends 'b': api_key_env"),
        (f"api_key_env = ['{_SECRET}']", "backends 'b': api_key_env"),
        (f"api_key_file = ['{_SECRET}']", "backends 'b': api_key_file"),
    ],
)
def test_a_credential_in_a_wrong_place(tmp_path: Path, line: str, name: str) -> None:
    text = _BACKEND.format(url="http://host/v1") + line + "\n"
    _assert_names_only(_refusal(tmp_path, text), name)


@each(
    "url",
    [
        f"http://user:{_SECRET}@host/v1",
        f"http://user:{_SECRET}@@host/v1",
        f"ftp://user:{_SECRET}@host/v1",
        f"http//user:{_SECRET}@host/v1",
        f"http://user:{_SECRET}@[::1/v1",
        f"http://user:{_SECRET}@host:port/v1",
        f"http://user:{_SECRET}@\u2100host/v1",
        f"http://host/v1?key={_SECRET}",
        f"http://host/v1#{_SECRET}",
        f"http://host:{_SECRET}/v1",
    ],
)
def test_a_backend_url_with_a_password(tmp_path: Path, url: str) -> None:
    _assert_names_only(_refusal(tmp_path, _BACKEND.format(url=url)), "backends", "http")


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("TOLLKEEPER_DATABASE__URL", f"mysql://user:{_SECRET}@host", "database.url"),
        ("TOLLKEEPER_DATABASE__PASSWORD", _SECRET, "database.password"),
        ("TOLLKEEPER_DATABASE", f"{{{_SECRET}", "database"),
        ("TOLLKEEPER_SERVER__PORT", "many", "server.port = 'many'"),
    ],
)
def test_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str
) -> None:
    monkeypatch.setenv(variable, value)
    _assert_names_only(_refusal(tmp_path, ""), name)


def test_settings_do_not_show_the_database_url() -> None:
    settings = Settings.model_validate({"database": {"url": _URL}})
    assert settings.database.url == _URL
    assert _SECRET not in repr(settings)
    assert _SECRET not in str(settings)


_COMMANDS = (["doctor", "--json"], ["organization", "list"], ["migrate"], ["serve"])


def _printed(folder: Path, text: str, command: list[str]) -> str:
    """Runs a command that fails, and returns all of its output."""
    path = folder / "tollkeeper.toml"
    path.write_text(text)
    code, out, err = run_warm(
        ["--config", str(path), *command],
        folder=folder,
        environment={name: value for name, value in os.environ.items() if "TOLLKEEPER" not in name},
        timeout_s=120,
    )
    assert code == 1, out + err
    return out + err


@each("command", _COMMANDS, ids=" ".join)
def test_a_command_prints_no_password(tmp_path: Path, command: list[str]) -> None:
    malformed = f"[database]\nurl = 'postgresql://user:{_SECRET}%zz@host/db'\n"
    _assert_names_only(_printed(tmp_path, malformed, command), "database.url")


@each("command", _COMMANDS, ids=" ".join)
def test_a_database_that_cannot_be_reached(tmp_path: Path, command: list[str]) -> None:
    """The output contains the driver's reason, but not the password."""
    ports = "[server]\nport = 0\n[operator]\nport = 0\n[embedded]\nenabled = false\n"
    url = f"postgresql://user:{_SECRET}@127.0.0.1:1/books"
    text = f"[database]\nurl = '{url}'\n{ports}"
    _assert_names_only(_printed(tmp_path, text, command), "database", "127.0.0.1")


@each(
    "wrong",
    [
        f"[database]\nurl = '{_URL}'\nurl = 'twice'\n",
        f"[database]\nurl = '{_URL}\n",
        f"[database]\nurl = {_SECRET}\n",
        f"{_SECRET}\n",
    ],
    ids=["twice", "open", "bare", "no setting"],
)
def test_a_file_that_is_not_toml(tmp_path: Path, wrong: str) -> None:
    _assert_names_only(_refusal(tmp_path, wrong), "is not TOML")


async def test_the_pool_logs_no_password(caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://user:{_SECRET}@127.0.0.1:1/books"
    database = Database(url, pool_size=2, pool_timeout_s=0.5, statement_timeout_s=1)
    with caplog.at_level(logging.DEBUG):
        await database.open()
        with pytest.raises(Unavailable) as refused:
            async with database.autocommit():
                pass
        await database.close()
    shown = [str(refused.value), repr(refused.value.__cause__), repr(database), caplog.text]
    _assert_names_only("\n".join(shown), "database")
