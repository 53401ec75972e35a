"""Runs pytest in a separate process, on tests that a test has written."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def write_tests(folder: Path, conftest: str, tests: str) -> None:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")


def run_pytest(
    folder: Path, *options: str, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider"),
            *(f"--rootdir={folder}", f"--override-ini=pythonpath={_ROOT}", *options, "test_it.py"),
        ],
        cwd=folder,
        # Other plugins would only slow down the start.
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
