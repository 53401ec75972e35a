"""Runs the tests of `make test` in random orders, each order twice."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.proof import Proof

_ROOT = Path(__file__).parents[2]
_SEEDS = (1, 2, 3)
_TIMES = 2
_WITHIN_S = 3600


@pytest.mark.usefixtures("only_long")
def test_every_order_passes(proof: Proof) -> None:
    """One test makes all runs one after the other, because each run already uses several cores."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    for seed in _SEEDS * _TIMES:
        began = time.monotonic()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal"),
                # The summary lists only failures and errors, so that the end of the output shows them.
                *(f"--randomly-seed={seed}", "-p", "no:cacheprovider", "-rfE"),
                "--ignore=tests/test_tidy.py",
            ],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        seconds = round(time.monotonic() - began)
        result = done.stdout.rstrip().rpartition("\n")[2]
        proof.row("random orders", seed=str(seed), seconds=str(seconds), result=result)
        proof.count("runs in a random order", int(done.returncode == 0), of=_TIMES * len(_SEEDS))
        assert done.returncode == 0, done.stdout[-5000:]
