"""The tests of `make test` pass in any order, and again in the same one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.proof import Proof

_ROOT = Path(__file__).parents[2]
_SEEDS = (1, 2, 3)
_TIMES = 2
_WITHIN_S = 3600


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("seed", _SEEDS)
def test_every_order_passes(proof: Proof, seed: int) -> None:
    """Each run is a process of its own, as `make test` is."""
    for _ in range(_TIMES):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal"),
                *(
                    f"--randomly-seed={seed}",
                    "-p",
                    "no:cacheprovider",
                    "--ignore=tests/test_tidy.py",
                ),
            ],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        proof.count("runs in a random order", int(done.returncode == 0), of=_TIMES * len(_SEEDS))
        assert done.returncode == 0, done.stdout[-5000:]
