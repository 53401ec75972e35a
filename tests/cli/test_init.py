"""`tollkeeper init`."""

import tomllib
from pathlib import Path

from tests.support.program import Program
from tollkeeper.settings import DEFAULT_FILE, load_settings


def test_writes_the_commented_defaults_once(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "place"
    made = program.json("init", str(folder))
    path = folder / "tollkeeper.toml"
    assert made == {"path": str(path)}
    assert path.read_text() == DEFAULT_FILE.read_text()
    assert load_settings(path).backends == load_settings(DEFAULT_FILE).backends

    path.write_text("# mine\n")
    assert program.refusal("init", str(folder)) == f"{path} exists already and is left as it is."
    assert path.read_text() == "# mine\n"


def test_writes_here_when_nothing_is_said(program: Program) -> None:
    assert program.run("init").code == 0
    path = program.folder / "tollkeeper.toml"
    assert tomllib.loads(path.read_text())
    path.unlink()


def test_a_place_that_is_no_folder_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in program.refusal("init", str(tmp_path / "file"))
