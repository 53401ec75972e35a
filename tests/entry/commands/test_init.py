"""Tests `tollkeeper init`."""

import tomllib
from pathlib import Path

from tests.support.program import Program
from tollkeeper.setup.settings import DEFAULT_FILE, load_settings


def test_writes_the_commented_defaults_once(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "place"
    made = program.json("init", str(folder))
    path = folder / "tollkeeper.toml"
    assert made == {"path": str(path)}
    assert path.read_text() == DEFAULT_FILE.read_text()
    assert load_settings(path).backends == load_settings(DEFAULT_FILE).backends

    path.write_text("# mine\n")
    assert program.refusal("init", str(folder)) == f"{path} exists already and was not changed."
    assert path.read_text() == "# mine\n"


def test_writes_here_when_nothing_is_said(program: Program) -> None:
    assert program.run("init").code == 0
    path = program.folder / "tollkeeper.toml"
    assert tomllib.loads(path.read_text())
    path.unlink()


def test_a_place_that_is_no_folder_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in program.refusal("init", str(tmp_path / "file"))


_LITELLM = """
model_list:
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OUR_KEY, rpm: 10}
"""


def test_converts_a_litellm_configuration(program: Program, tmp_path: Path) -> None:
    source = tmp_path / "config.yaml"
    source.write_text(_LITELLM)
    folder = tmp_path / "converted"
    made = program.json("init", str(folder), "--from-litellm", str(source))
    path = folder / "tollkeeper.toml"
    assert (made["path"], made["models"]) == (str(path), 1)
    assert "model_list[0].litellm_params.rpm" in [row["setting"] for row in made["data"]]
    assert load_settings(path).backends[0].api_key_env == "OUR_KEY"
    # `doctor` can read the file. Other checks may fail: the operator has not set the key.
    checked = program.with_config(path).run("doctor")
    assert "settings" in checked.out
    again = program.refusal("init", str(folder), "--from-litellm", str(source))
    assert again == f"{path} exists already and was not changed."


def test_a_wrong_litellm_configuration_writes_nothing(program: Program, tmp_path: Path) -> None:
    source = tmp_path / "config.yaml"
    for text, message in (
        ("model_list: [", "is not YAML"),
        (_LITELLM.replace("rpm: 10", "input_cost_per_token: 1e-13"), "pricing"),
    ):
        source.write_text(text)
        assert message in program.refusal(
            "init", str(tmp_path / "new"), "--from-litellm", str(source)
        )
        assert not (tmp_path / "new").exists()
