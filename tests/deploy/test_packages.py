"""Tests that the wheel, built from the source distribution, starts with only its locked dependencies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tollkeeper
from tests.journeys.clients.environments import python_environment

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_UV = Path(sys.executable).with_name("uv")
_WITHIN_S = 300


def _run(*line: str | Path, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        line,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the source distribution and, from it, the wheel. Returns their folder."""
    folder = tmp_path_factory.mktemp("packages")
    interpreter = ("--python", sys.executable, "--no-build-isolation", "--offline")
    _run(_UV, "build", "--quiet", *interpreter, "--out-dir", folder, _ROOT, folder=folder)
    return folder


@pytest.fixture(scope="module")
def installed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel for an interpreter that does not see the checkout. Returns the wheel's folder."""
    python = python_environment("requirements", _ROOT / "deploy")
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = packages.glob("*.whl")
    options = ("--quiet", "--offline", "--no-deps", "--python", python, "--target", folder)
    _run(_UV, "pip", "install", *options, wheel, folder=folder)
    return folder


def _program(installed: Path, *arguments: str, folder: Path) -> str:
    variables = {"PYTHONPATH": str(installed), "NO_COLOR": "1", "COLUMNS": "80"}
    return _run(installed / "bin" / "tollkeeper", *arguments, folder=folder, **variables)


def test_both_are_there(packages: Path) -> None:
    version = tollkeeper.__version__
    names = {path.name for path in packages.iterdir()} - {".gitignore"}
    assert names == {f"tollkeeper-{version}.tar.gz", f"tollkeeper-{version}-py3-none-any.whl"}


def test_the_program_starts(installed: Path, tmp_path: Path) -> None:
    shown = _program(installed, "--version", folder=tmp_path)
    assert shown == f"tollkeeper {tollkeeper.__version__}\n"
    assert "demo organization" in _program(installed, "demo", "--help", folder=tmp_path)


def test_what_is_no_code_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    """Checks that the wheel contains the default settings, the migrations and the console's pages."""
    _program(installed, "init", folder=tmp_path)
    default = _ROOT / "src" / "tollkeeper" / "settings" / "default.toml"
    assert (tmp_path / "tollkeeper.toml").read_text() == default.read_text()
    shown = json.loads(_program(installed, "openapi", "--json", folder=tmp_path))
    assert shown == json.loads((_ROOT / "openapi.json").read_text())
    source = _ROOT / "src" / "tollkeeper"
    wanted = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in wanted if not (installed / "tollkeeper" / path).is_file()} == set()
