"""Runs a real Chromium for tests. If the system has none, it installs Debian's packages on first use.

As root, it installs the package. Otherwise it unpacks the package and its dependencies into
`.clients/`, which needs no root.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Browser, async_playwright

_FOLDER = Path(__file__).parents[2] / ".clients" / "chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PACKAGE = "chromium"
_INSTALL_WITHIN_S = 900
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class NoBrowser(Exception):
    """Raised with the reason if there is no Chromium and it cannot be installed."""


@dataclass(frozen=True)
class Chromium:
    program: Path
    environment: dict[str, str] = field(default_factory=dict)


def find_or_install() -> Chromium:
    found = _installed()
    if found is not None:
        return found
    _FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with _FOLDER.with_name("chromium.guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        found = _installed()
        if found is None:
            if shutil.which("apt-get") is None:
                raise NoBrowser("Install Chromium or Chrome: there is no apt-get to do it.")
            if os.geteuid() == 0:
                _install_as_root()
            else:
                _unpack()
            found = _installed()
    if found is None:
        raise NoBrowser("Chromium was installed and is not found.")
    return found


@asynccontextmanager
async def running_browser(chromium: Chromium) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.program,
            args=list(_FLAGS),
            env={**os.environ, **chromium.environment},
        )
        try:
            yield browser
        finally:
            await browser.close()


def _installed() -> Chromium | None:
    for name in _NAMES:
        program = shutil.which(name)
        if program is not None:
            return Chromium(Path(program))
    unpacked = _FOLDER / "root"
    program_file = unpacked / "usr/lib/chromium/chromium"
    if not (_FOLDER / ".complete").is_file():
        return None
    libraries = [str(path) for path in unpacked.glob("usr/lib/*-linux-gnu*")]
    paths = [*libraries, *(f"{path}/pulseaudio" for path in libraries)]
    environment = {"LD_LIBRARY_PATH": ":".join(paths)}
    if (unpacked / "etc/fonts").is_dir() and (unpacked / "usr/share/fonts").is_dir():
        # The machine may have no fonts, so Chromium uses the unpacked fonts.
        environment["FONTCONFIG_SYSROOT"] = str(unpacked)
    return Chromium(program_file, environment)


def _install_as_root() -> None:
    install = ("apt-get", "install", "-y", "--no-install-recommends", _PACKAGE)
    try:
        _run(*install)
    except NoBrowser:  # The package lists are missing or old.
        _run("apt-get", "update")
        _run(*install)


def _unpack() -> None:
    """Downloads the package and its missing dependencies, and unpacks them."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    packages, root, lists = (_FOLDER / name for name in ("packages", "root", "lists"))
    for folder in (packages / "partial", root, lists / "partial"):
        folder.mkdir(parents=True)
    own = (
        *("-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={packages}"),
        *("-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="),
    )
    _run("apt-get", *own, "update")
    planned = _run(
        *("apt-get", *own, "install", "--print-uris", "-qq", "--no-install-recommends", _PACKAGE)
    )
    # The format of a line: 'URL' name_version_architecture.deb size digest
    files = [line.split()[1] for line in planned.splitlines() if line.startswith("'")]
    for file in files:
        _run("apt-get", *own, "download", file.partition("_")[0], folder=packages)
    for package in sorted(packages.glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(root))
    (_FOLDER / ".complete").touch()


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_INSTALL_WITHIN_S,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NoBrowser(f"{command[0]} {command[-1]}: {' '.join(last)}")
    return done.stdout
