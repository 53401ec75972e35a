"""Builds the image of deploy/Dockerfile without a container engine or a registry.

buildah runs the steps in a chroot. In place of the Dockerfile's base image, debootstrap creates a Debian
of the same release, with Debian's own build of Python.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_IMAGES = ROOT / "deploy" / "images.env"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_WITHIN_S = 1200


class CannotBuild(Exception):
    """Raised if this machine cannot build the image. Its text is the reason."""


@dataclass(frozen=True)
class Image:
    """The built image, and a container that was created from it."""

    options: tuple[str, ...]
    container: str
    config: dict[str, Any]

    def line(
        self, *command: str, volumes: dict[Path, str], environment: dict[str, str]
    ) -> list[str]:
        """Returns the line that runs a command in the container, as the image's user in the host's network."""
        mounts = [f"--volume={source}:{target}:ro" for source, target in volumes.items()]
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        options = ("--isolation=chroot", *mounts, *variables)
        return ["buildah", *self.options, "run", *options, self.container, "--", *command]


def require_tools() -> None:
    """Raises CannotBuild if a program is missing or the process does not run as root."""
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing:
        raise CannotBuild(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        raise CannotBuild("debootstrap and a chroot need root")


def build_image(folder: Path) -> Image:
    require_tools()
    storage = (f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}")
    options = (*storage, "--storage-driver=vfs")
    _make_base(folder, options)
    ignored = ROOT / "deploy" / "Dockerfile.dockerignore"
    _buildah(
        *options,
        "bud",
        "--isolation=chroot",
        "--pull-never",
        # Only this format has health checks.
        "--format=docker",
        f"--file={_DOCKERFILE}",
        f"--build-arg=PYTHON_IMAGE={_base_name()}",
        f"--ignorefile={ignored}",
        "--tag=tollkeeper",
        str(ROOT),
    )
    inspected = _buildah(*options, "inspect", "--type=image", "localhost/tollkeeper")
    container = _buildah(*options, "from", "--pull-never", "localhost/tollkeeper").strip()
    return Image(options, container, json.loads(inspected)["Docker"]["config"])


def _make_base(folder: Path, options: tuple[str, ...]) -> None:
    name = _base_name()
    files = folder / "debian"
    release = name.rpartition("-")[2]
    made = _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(files))
    if made.returncode != 0:
        last_line = made.stdout.strip().rpartition("\n")[2]
        raise CannotBuild(f"debootstrap: {last_line}")
    # The build trusts the same certificates as this machine, for example that of a proxy.
    trusted = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if trusted:
        shutil.copyfile(trusted, files / _CERTIFICATES)
    # As in the replaced image, `python` exists, and pip may install packages for all users.
    (files / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    for marker in files.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    container = _buildah(*options, "from", "scratch").strip()
    _buildah(*options, "copy", "--quiet", container, str(files), "/")
    for variable in ("SSL_CERT_FILE", "PIP_CERT"):
        _buildah(*options, "config", f"--env={variable}=/{_CERTIFICATES}", container)
    _buildah(*options, "commit", "--quiet", "--rm", container, name)


def _base_name() -> str:
    """Returns the name of the Dockerfile's base image, without its digest: the image created here has
    another digest."""
    (name,) = re.findall(r"^PYTHON_IMAGE=([^@\n]+)", _IMAGES.read_text(), re.MULTILINE)
    return str(name)


def _buildah(*arguments: str) -> str:
    done = _run("buildah", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run(*line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
