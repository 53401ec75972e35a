"""Tests mistakes that the settings library would not notice: a boolean in place of a number, and an
environment variable for an unknown section or for an entry of a list."""

import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.support.tables import each
from tollkeeper.setup.settings import Settings, SettingsError, load_settings

_NUMBERS = [
    (section, name)
    for section, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    for name, setting in field.annotation.model_fields.items()
    if {int, float} & {setting.annotation, *typing.get_args(setting.annotation)}
]


def _load(folder: Path, text: str) -> Settings:
    path = folder / "tollkeeper.toml"
    path.write_text(text)
    return load_settings(path)


@each(("section", "name"), _NUMBERS)
def test_a_truth_value_is_no_number(tmp_path: Path, section: str, name: str) -> None:
    """Otherwise `activity.retention_days = true` would mean one day."""
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, f"[{section}]\n{name} = true\n")
    assert f"{name} = True: must be a number" in str(refused.value)


def test_a_variable_of_an_unknown_section_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLKEEPER_SERVR__PORT", "secret-value")
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, "")
    assert str(refused.value) == (
        "TOLLKEEPER_SERVR__PORT: there is no section servr; did you mean server?"
    )


def test_a_variable_of_a_list_entry_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the variable and not the line of the list in the file, which is right."""
    monkeypatch.setenv("TOLLKEEPER_BACKENDS__0__NAME", "other")
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, "[[backends]]\nname = 'b'\nkind = 'openai'\nurls = ['http://host/v1']\n")
    assert str(refused.value).startswith("TOLLKEEPER_BACKENDS__0__NAME: backends: must be a list")


def test_variables_of_other_programs_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets such variables in every pod if there is a service with the name tollkeeper."""
    monkeypatch.setenv("TOLLKEEPER_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TOLLKEEPER_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    assert _load(tmp_path, "").server.port == 8080
