"""Unpacks programs of Debian packages into a folder of the checkout, without installing them."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.journeys.clients.environments import NotInstalled, install_once

_FOLDER = Path(__file__).parents[3] / ".clients" / "debian"
# Time limit for each command, in seconds.
_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class DebianProgram:
    program: Path
    # Additional environment variables: the path of the unpacked libraries.
    environment: dict[str, str]


def debian_program(package: str, path: str, *libraries: str) -> DebianProgram:
    """Returns the program at `path` of a package, with packages of libraries that a small system may lack.
    If the machine has the program, returns that one."""
    installed = shutil.which(Path(path).name, path=f"{os.environ['PATH']}:/usr/sbin")
    if installed is not None:
        return DebianProgram(Path(installed), {})
    folder = _FOLDER / package

    def install() -> None:
        folder.mkdir(parents=True)
        _download([package, *libraries], folder)
        for archive in folder.glob("*.deb"):
            _run(["dpkg-deb", "--extract", archive.name, "files"], folder)

    install_once(folder, [], install)
    files = folder / "files"
    found = ":".join(str(place) for place in files.glob("usr/lib/*-linux-gnu"))
    return DebianProgram(files / path, {"LD_LIBRARY_PATH": found} if found else {})


def debian_program_or_skip(package: str, path: str) -> DebianProgram:
    try:
        return debian_program(package, path)
    except NotInstalled as exc:
        pytest.skip(str(exc))


def _download(packages: list[str], folder: Path) -> None:
    try:
        _run(["apt-get", "download", *packages], folder)
    except NotInstalled:
        # A new machine may have no package lists yet. Fetch them into a folder of this checkout.
        lists, cache = folder / "lists", folder / "cache"
        for place in (lists / "partial", cache / "archives" / "partial"):
            place.mkdir(parents=True)
        places = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]
        _run(["apt-get", *places, "update"], folder)
        _run(["apt-get", *places, "download", *packages], folder)
        shutil.rmtree(lists)
        shutil.rmtree(cache)


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_WITHIN_S)
    except FileNotFoundError as exc:
        raise NotInstalled(f"{command[0]} is not there") from exc
    except subprocess.TimeoutExpired as exc:
        raise NotInstalled(f"{command[0]} took longer than {_WITHIN_S} s") from exc
    except subprocess.CalledProcessError as exc:
        said = exc.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise NotInstalled(f"{command[0]} failed: {said[-1]}") from exc
