"""Tests every target with its seeds and with inputs that fuzzing found before. With --prove, also fuzzes it."""

import random
from pathlib import Path

import pytest

from tests.fuzz.campaign import fuzz, install_fuzzer
from tests.fuzz.seeds import seeds_of
from tests.fuzz.targets import TARGETS
from tests.journeys.clients.environments import NotInstalled
from tests.support.proof import Proof
from tests.support.tables import each

_FUZZED_S = 5
_CHANGED_MAX = 300


@each("name", TARGETS)
def test_seeds_and_what_was_found(name: str) -> None:
    seeds = list(seeds_of(name))
    assert seeds
    for seed in seeds:
        TARGETS[name](seed)


@each("name", TARGETS)
def test_seeds_with_changes(name: str) -> None:
    """Changes seeds at random without atheris. The changes are the same in every run."""
    chance = random.Random(name)
    seeds = [seed for seed in seeds_of(name) if len(seed) < 2000]
    for _ in range(_CHANGED_MAX):
        data = bytearray(chance.choice(seeds))
        other = chance.choice(seeds)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data) + 1)
            start = chance.randrange(len(other) + 1)
            data[at : at + chance.randrange(4)] = other[start : start + chance.randrange(8)]
        TARGETS[name](bytes(data))


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    """Installs the fuzzer. If this fails, pytest skips all tests of the fixture after one attempt."""
    try:
        return install_fuzzer()
    except NotInstalled as exc:
        pytest.skip(str(exc))


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzed_for_a_moment(name: str, proof: Proof, fuzzer: Path) -> None:
    campaign = fuzz(fuzzer, name, _FUZZED_S)
    assert campaign.crash is None, campaign.said[-4000:]
    assert campaign.edges > 0
    proof.count("inputs by coverage-guided fuzzing", campaign.executions)
