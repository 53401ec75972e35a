"""Programs of Debian packages, unpacked into a folder of the checkout: no right to install is needed."""

import shutil
import subprocess
from pathlib import Path

from tests.journeys.clients.environments import NotInstalled

_FOLDER = Path(__file__).parent.parent / ".clients" / "debian"
_WITHIN_S = 120


def debian_program(package: str, path: str) -> Path:
    """The program at `path` of a package: the machine's own if it has one, else an unpacked copy."""
    installed = shutil.which(Path(path).name)
    if installed is not None:
        return Path(installed)
    folder = _FOLDER / package
    program = folder / "files" / path
    if not program.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _run(["apt-get", "download", package], folder)
        archives = [str(archive) for archive in folder.glob("*.deb")]
        _run(["dpkg-deb", "--extract", *archives, "files"], folder)
    return program


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
