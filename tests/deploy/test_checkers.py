"""Tests that the programs that read or check deployment files accept ours."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.journeys.clients.environments import python_environment

pytestmark = pytest.mark.slow

_DEPLOY = Path(__file__).parents[2] / "deploy"
_UNITS = sorted((_DEPLOY / "systemd").glob("*.service"))
_LOCKS = Path(__file__).with_name("locks")
_WITHIN_S = 120
# Ten times the highest allowed exposure level, which systemd gives from 0.0 (closed) to 10.0.
_EXPOSURE_MAX = 20
_has_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture(scope="module")
def checkers() -> Path:
    """Returns the folder of the checkers that are Python packages."""
    return python_environment("checkers", _LOCKS).parent


def _accepts(*line: str | Path) -> None:
    done = subprocess.run(line, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_accepts_the_image(checkers: Path) -> None:
    _accepts(checkers / "hadolint", _DEPLOY / "Dockerfile")


def test_compose_fits_its_schema(checkers: Path) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    _accepts(checkers / "check-jsonschema", *schema, _DEPLOY / "compose.yaml")


def test_manifests_fit_the_schemas_of_kubernetes(checkers: Path) -> None:
    files = sorted((_DEPLOY / "kubernetes").glob("*.yaml"))
    _accepts(checkers / "kubernetes-validate", "--strict", *files)


@_has_systemd
@pytest.mark.parametrize("source", _UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(source: Path, tmp_path: Path) -> None:
    program = tmp_path / "tollkeeper"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / source.name
    unit.write_text(source.read_text().replace("/opt/tollkeeper/bin/tollkeeper", str(program)))
    _accepts("systemd-analyze", "verify", unit)


@_has_systemd
@pytest.mark.parametrize("unit", _UNITS, ids=lambda path: path.name)
def test_the_unit_is_closed(unit: Path) -> None:
    line = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    shown = subprocess.run(line, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    found = re.search(r"exposure level for \S+ (\d+)\.(\d)", shown.stdout)
    assert found is not None, shown.stdout + shown.stderr
    assert int(found[1] + found[2]) <= _EXPOSURE_MAX
