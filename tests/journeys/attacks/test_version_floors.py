"""Tests that no locked or installed package is older than the fix of a known advisory.

The known advisories are listed in `version_floors.toml`, because advisory databases cannot be queried
everywhere. Add a line to that file for every new advisory."""

import importlib.metadata
import re
import sysconfig
import tomllib
from pathlib import Path

from packaging.version import Version

from tests.support.tables import each

_HERE = Path(__file__).parent
_ROOT = Path(__file__).parents[3]
_RULES = tomllib.loads((_HERE / "version_floors.toml").read_text())
_LOCKS = ("requirements.lock", "requirements-uv.lock")
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", re.MULTILINE)


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _locked(lock: str) -> dict[str, str]:
    found = _PINNED.findall((_ROOT / lock).read_text())
    return {_name(name): version for name, version in found}


def _faults(versions: dict[str, str]) -> list[str]:
    old = [
        f"{name} {versions[name]} is older than {floor}: {advisory}"
        for name, (floor, advisory) in _RULES["floors"].items()
        if name in versions and Version(versions[name]) < Version(floor)
    ]
    return old + [
        f"{name} {versions[name]} is not its authors' own"
        for name, poisoned in _RULES["poisoned"].items()
        if versions.get(name) in poisoned
    ]


@each("lock", _LOCKS)
def test_what_is_locked(lock: str) -> None:
    versions = _locked(lock)
    assert versions
    assert _faults(versions) == []


def test_what_is_installed() -> None:
    versions = {
        _name(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()
    }
    assert _faults(versions) == []


def test_every_locked_file_has_its_hash() -> None:
    for lock in _LOCKS:
        text = (_ROOT / lock).read_text()
        entries = re.split(r"^(?=[A-Za-z0-9_.-]+==)", text, flags=re.MULTILINE)[1:]
        assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_nothing_unexpected_runs_when_the_interpreter_starts() -> None:
    """A poisoned LiteLLM ran from a `.pth` file. Only files of installers and of this checkout may exist."""
    folder = Path(sysconfig.get_paths()["purelib"])
    found = {path.name for path in folder.iterdir() if path.suffix == ".pth"}
    own = {name for name in found if "tollkeeper" in name}
    assert found - own <= {"distutils-precedence.pth", "_virtualenv.pth"}
    assert not [
        name for name in ("sitecustomize.py", "usercustomize.py") if (folder / name).exists()
    ]


def test_old_versions_are_found() -> None:
    assert _faults({"h11": "0.14.0"}) == ["h11 0.14.0 is older than 0.16.0: CVE-2025-43859"]
    assert _faults({"litellm": "1.82.7"}) == ["litellm 1.82.7 is not its authors' own"]
