"""Tests the account that runs PostgreSQL: processes create it only once, and it can enter open folders."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.data_folders import data_folder
from tests.support.tables import each
from tollkeeper.core.errors import Unavailable
from tollkeeper.setup.embedded.postgres_account import ensure_account

_only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make accounts")
_PROCESSES = 6
_MAKE_ACCOUNT = """
import sys
from tollkeeper.setup.embedded.postgres_account import ensure_account
print("ready", flush=True)
sys.stdin.readline()
account = ensure_account(sys.argv[1])
print(account.uid, account.gid)
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Yields the name of an account that does not exist, and removes the account afterwards."""
    name = f"tk-test-{uuid.uuid4().hex[:12]}"
    yield name
    subprocess.run(["userdel", name], capture_output=True, check=False)


class FakeUseradd:
    """A useradd program that fails `failures` times, and then runs the real useradd."""

    def __init__(self, folder: Path, says: str, code: int, *, failures: int) -> None:
        self._runs = folder / "runs"
        script = folder / "useradd"
        script.write_text(
            "#!/bin/sh\n"
            f"echo run >> {self._runs}\n"
            f"if [ $(wc -l < {self._runs}) -le {failures} ]; then\n"
            f'  echo "{says}" >&2\n'
            f"  exit {code}\n"
            "fi\n"
            f'exec {shutil.which("useradd")} "$@"\n'
        )
        script.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines())


def _put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@_only_root
def test_processes_that_start_at_once_get_one_account(name: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKE_ACCOUNT, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(_PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = [process.communicate(timeout=120)[0] for process in processes]
    account = ensure_account(name)
    # If the user id had changed, the account would not own files that it got before.
    assert found == [f"{account.uid} {account.gid}\n"] * _PROCESSES
    assert all(process.returncode == 0 for process in processes)


@_only_root
def test_another_failure_is_reported_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeUseradd(tmp_path, "useradd: no space for users", 1, failures=1_000_000)
    _put_on_path(monkeypatch, tmp_path)
    with pytest.raises(Unavailable, match=r"no space for users.*database\.url"):
        ensure_account(name)
    assert fake.runs == 1


@_only_root
def test_a_machine_without_useradd(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"useradd.*Start tollkeeper as another user"):
        ensure_account(name)


@_only_root
@each(("mode", "enters"), [(0o711, True), (0o755, True), (0o700, False), (0o710, False)])
def test_a_folder_that_the_account_can_enter(mode: int, enters: bool) -> None:
    account = ensure_account()
    with data_folder() as folder:
        inner = folder / "inner"
        inner.mkdir()
        inner.chmod(mode)
        assert account.can_enter(inner) is enters
        inner.chmod(0o711)
        folder.chmod(mode)
        assert account.can_enter(inner) is enters
