"""Detects how the interpreter of a run was built, and finds an interpreter that was built with optimisation."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.journeys.clients.environments import NotInstalled, python_environment

_PROJECT = Path(__file__).parent.parent
# Debian builds this interpreter with profile-guided optimisation, but no flag shows it.
_DEBIAN = Path("/usr/bin/python3")
_OLDEST = (3, 11)


def own_build() -> str:
    """Says whether this interpreter was built with profile-guided optimisation."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if "--enable-optimizations" in flags or Path(sys.base_prefix) == Path("/usr"):
        return "built with optimisation"
    return "built without optimisation"


def optimised_python() -> Path:
    """Returns the Python of an environment with Debian's interpreter and the project's locked packages."""
    if own_build() == "built with optimisation":
        raise NotInstalled("the interpreter of this run already is")
    if not _DEBIAN.exists():
        raise NotInstalled("there is no interpreter of the distribution")
    version = subprocess.run(
        [_DEBIAN, "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        check=True,
        text=True,
        timeout=30,
    ).stdout.split()
    if tuple(map(int, version)) < _OLDEST:
        raise NotInstalled(f"the distribution has Python {'.'.join(version)}")
    return python_environment("requirements", _PROJECT, interpreter=_DEBIAN)
