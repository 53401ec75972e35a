"""Tests simulated histories of whole calls: the ledger agrees with the provider's bills."""

from collections import Counter

from tests.proofs.call_histories import run_call_history
from tests.proofs.simulated_provider import Manner
from tests.support.proof import Proof

SMOKE = 300
QUICK = 1_000
LONG = 50_000


def test_every_call_is_charged_what_was_billed(proof: Proof) -> None:
    seen: Counter[str] = Counter()
    histories = proof.size(QUICK, LONG, smoke=SMOKE)
    for seed in range(histories):
        seen += run_call_history(seed)
    proof.count("histories of calls", histories)
    for what, number in seen.items():
        proof.count(f"histories of calls: {what}", number)
    # Each kind of event must occur, because otherwise the simulation proves nothing about it.
    wanted = {
        *(manner.value for manner in Manner),
        *("callers that left", "processes killed", "clock jumps", "calls fanned out"),
        "calls refused by overage in flight",
    }
    assert wanted <= set(seen), seen


def test_the_same_seed_is_the_same_history() -> None:
    for seed in range(10):
        assert run_call_history(seed) == run_call_history(seed)
