"""Tests that compiled tests are kept for the next run if Python must not write beside the source."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.nested_pytest import run_pytest, write_tests

pytestmark = pytest.mark.slow

_KEPT = ".pytest_cache/compiled"


def _run(folder: Path, *options: str) -> set[Path]:
    """Runs the tests of the folder, and returns the compiled files that exist afterwards."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    done = run_pytest(folder, *options, environment={**inherited, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "__pycache__").exists()
    return {path for path in (folder / _KEPT).rglob("*.pyc") if path.name.startswith("test_it")}


@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_a_run_leaves_what_the_next_one_reads(tmp_path: Path, processes: tuple[str, ...]) -> None:
    conftest = 'pytest_plugins = ["tests.support.compiled_files"]\n'
    write_tests(tmp_path, conftest, "def test_it():\n    assert True\n")
    [compiled] = _run(tmp_path, *processes)
    written_at = compiled.stat().st_mtime_ns
    gone = tmp_path / _KEPT / Path(tempfile.gettempdir()).relative_to("/") / "gone" / "it.pyc"
    gone.parent.mkdir(parents=True)
    gone.touch()
    assert _run(tmp_path, *processes) == {compiled}
    assert compiled.stat().st_mtime_ns == written_at
    assert not gone.exists(), "files of temporary folders do not pile up"
