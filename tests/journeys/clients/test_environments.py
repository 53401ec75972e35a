"""Tests that clients' environments are installed once, again after a change, and never in part."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.clients import environments
from tests.journeys.clients.environments import NotInstalled, install_once

pytestmark = pytest.mark.slow

PARALLEL = 4


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    lock = tmp_path / "some.lock"
    lock.write_text("one")
    return lock


def test_installs_once_and_again_when_the_lock_changed(tmp_path: Path, lock: Path) -> None:
    folder = tmp_path / "some"
    installed: list[str] = []

    def install() -> None:
        assert not folder.exists(), "nothing of an older one is left"
        folder.mkdir()
        installed.append(lock.read_text())

    install_once(folder, [lock], install)
    install_once(folder, [lock], install)
    lock.write_text("two")
    install_once(folder, [lock], install)
    install_once(folder, [lock], install)
    assert installed == ["one", "two"]


def test_what_broke_is_said_and_tried_again(tmp_path: Path, lock: Path) -> None:
    folder = tmp_path / "some"
    tries: list[int] = []

    def install() -> None:
        folder.mkdir()
        tries.append(len(tries))
        if len(tries) == 1:
            raise NotInstalled("No such host.")

    with pytest.raises(NotInstalled, match=r"in some\.lock cannot be installed: No such host\."):
        install_once(folder, [lock], install)
    install_once(folder, [lock], install)
    assert tries == [0, 1]


def test_a_package_that_no_index_has_is_a_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv and pip are offline, so that both fail. The message contains the errors of pip."""
    (tmp_path / "broken.lock").write_text(f"nowhere==1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(environments, "_FOLDER", tmp_path / "clients")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        NotInstalled, match=r"in broken\.lock cannot be installed: .*nowhere"
    ) as refused:
        environments.python_environment("broken", tmp_path)
    assert "\n" not in str(refused.value)


def test_processes_wait_for_each_other(tmp_path: Path, lock: Path) -> None:
    """All processes but the first find the environment installed."""
    program = f"""
from pathlib import Path
from tests.journeys.clients.environments import install_once

folder = Path({str(tmp_path / "some")!r})

def install():
    folder.mkdir()
    with Path({str(tmp_path / "story")!r}).open("a") as story:
        story.write("installed\\n")

install_once(folder, [Path({str(lock)!r})], install)
"""
    root = Path(__file__).parents[3]
    started = [subprocess.Popen([sys.executable, "-c", program], cwd=root) for _ in range(PARALLEL)]
    assert [process.wait(60) for process in started] == [0] * PARALLEL
    assert (tmp_path / "story").read_text() == "installed\n"
