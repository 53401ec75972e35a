"""Tests thousands of simulated histories of the ledger. If a history fails, the error names its seed."""

from collections import Counter

import pytest

from tests.proofs.simulation import run_history
from tests.support.proof import Proof

# The histories are split into parts, which can run on several cores.
PARTS = 4
SMOKE = 400 // PARTS
QUICK = 2_000 // PARTS
LONG = 100_000 // PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_ends_well(proof: Proof, part: int) -> None:
    seen: Counter[str] = Counter()
    histories = proof.size(QUICK, LONG, smoke=SMOKE)
    for seed in range(part * histories, (part + 1) * histories):
        outcome = run_history(seed)
        seen["steps"] += outcome.steps
        seen["commits"] += outcome.commits
        seen["commits in doubt"] += outcome.doubts
        seen["crashes of the database"] += outcome.crashes
        seen["processes killed"] += outcome.kills
        seen["holds put back"] += outcome.restored
    proof.count("histories of the ledger", histories)
    for what, number in seen.items():
        proof.count(f"histories: {what}", number)
    # Each kind of event must occur, because otherwise the simulation proves nothing about it.
    assert min(seen.values()) > 0, seen


def test_the_same_seed_is_the_same_history() -> None:
    for seed in range(10):
        assert run_history(seed) == run_history(seed)
