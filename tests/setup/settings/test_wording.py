"""Tests that wrong settings are explained in tollkeeper's own words, not in those of the library."""

from pathlib import Path

import pytest

from tests.support.tables import each
from tollkeeper.setup.settings import SettingsError, load_settings

_LIBRARY = ("Extra inputs", "Input should", "Field required", "Value error", "String should")


def _refusal(folder: Path, text: str) -> str:
    path = folder / "tollkeeper.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings(path)
    return str(refused.value)


@each(
    ("text", "said"),
    [
        ("[server]\nprot = 1", "server.prot: is not a setting; did you mean port?"),
        ("[srever]\nport = 1", "srever: is not a setting; did you mean server?"),
        ("[server]\nbanana = 1", "server.banana: is not a setting"),
        ("[server]\nport = 70000", "server.port = 70000: must be at most 65535"),
        ("[server]\nport = -1", "server.port = -1: must be at least 0"),
        ("[server]\nworkers = 'two'", "server.workers = 'two': must be an integer"),
        ("[server]\ngrace_s = 0", "server.grace_s = 0: must be more than 0"),
        ("server = 5", "server: must be a section with settings of its own"),
        ("[embedded]\nenabled = 'maybe'", "embedded.enabled = 'maybe': must be true or false"),
        (
            "[ledger]\nunsettled_resolution = 'xml'",
            "ledger.unsettled_resolution = 'xml': must be 'keep', 'settle_hold' or 'release'",
        ),
        ("[sessions]\nheaders = 3", "sessions.headers = 3: must be a list"),
        ("[judge]\nbackend = 'b'", "judge.model: is required"),
        ("[[models]]\nid = ''", "models number 1: id = '': must have at least 1 characters"),
        (
            "[auth]\nproject_key_default_permissions = ['everything']",
            "auth.project_key_default_permissions: 'everything' is not a customer permission",
        ),
    ],
)
def test_each_kind_of_mistake(tmp_path: Path, text: str, said: str) -> None:
    refusal = _refusal(tmp_path, text)
    assert said in refusal
    assert not any(words in refusal for words in _LIBRARY)


def test_a_variable_that_should_hold_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLKEEPER_MODELS", "not json")
    said = "models: the environment variable TOLLKEEPER_MODELS must hold JSON"
    assert _refusal(tmp_path, "") == said
