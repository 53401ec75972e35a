"""Tests API keys: their format, their checksum, their kinds, and their redacted form."""

import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.access import KeyKind
from tollkeeper.tenants.keys import (
    PREFIXES,
    derived_key,
    key_digest,
    key_kind,
    mint_key,
    redact_key,
)

_BASE62 = string.digits + string.ascii_letters
both_kinds = pytest.mark.parametrize("kind", KeyKind)


def _sample(kind: KeyKind) -> str:
    return mint_key(kind).value


@both_kinds
def test_minted_key(kind: KeyKind) -> None:
    minted = mint_key(kind)
    assert minted.value.startswith(PREFIXES[kind])
    assert len(minted.value) == 42
    assert set(minted.value[4:]) <= set(_BASE62)
    assert key_kind(minted.value) is kind
    assert minted.digest == hashlib.sha256(minted.value.encode()).digest()
    assert minted.redacted_value == minted.value[:8] + "..."


@both_kinds
def test_keys_are_random(kind: KeyKind) -> None:
    """Checks that a key has at least 160 random bits: each of 32 characters can have 62 values."""
    values = [mint_key(kind).value for _ in range(2000)]
    assert len(set(values)) == 2000
    for position in range(4, 36):
        assert len({value[position] for value in values}) == 62


@both_kinds
def test_every_substitution_is_refused(kind: KeyKind) -> None:
    value = _sample(kind)
    for position in range(len(value)):
        for character in _BASE62 + "_- \n\x00é":
            if character != value[position]:
                changed = value[:position] + character + value[position + 1 :]
                assert key_kind(changed) is None, (value, position, character)


@both_kinds
def test_every_transposition_is_refused(kind: KeyKind) -> None:
    value = _sample(kind)
    for first in range(len(value)):
        for second in range(first + 1, len(value)):
            if value[first] != value[second]:
                swapped = list(value)
                swapped[first], swapped[second] = swapped[second], swapped[first]
                assert key_kind("".join(swapped)) is None, (value, first, second)


@both_kinds
def test_insertions_and_omissions_are_refused(kind: KeyKind) -> None:
    value = _sample(kind)
    for position in range(len(value) + 1):
        assert key_kind(value[:position] + "A" + value[position:]) is None
        assert key_kind(value[:position]) is None or position == len(value)
        assert key_kind(value[:position] + value[position + 1 :]) is None or position == len(value)


@both_kinds
@pytest.mark.parametrize("around", ["{} ", " {}", "{}\n", "\n{}", "{}\x00", "{0}{0}", "Bearer {}"])
def test_nothing_around_a_key(kind: KeyKind, around: str) -> None:
    assert key_kind(around.format(_sample(kind))) is None


def test_kinds_are_never_confused() -> None:
    assert len(set(PREFIXES.values())) == len(KeyKind)
    for kind, prefix in PREFIXES.items():
        for other in set(KeyKind) - {kind}:
            assert key_kind(prefix + _sample(other)[4:]) is None


@given(st.text(max_size=60))
def test_arbitrary_text_is_no_key(text: str) -> None:
    assert key_kind(text) is None


@given(st.text(alphabet=_BASE62, min_size=38, max_size=38), st.sampled_from(KeyKind))
def test_well_shaped_text_is_almost_never_a_key(text: str, kind: KeyKind) -> None:
    assert key_kind(PREFIXES[kind] + text) is None


def test_digest_depends_on_every_character() -> None:
    value = _sample(KeyKind.ADMIN)
    digests = {key_digest(value[:length]) for length in range(len(value) + 1)}
    assert len(digests) == len(value) + 1


@both_kinds
def test_redacted_value_hides_the_rest(kind: KeyKind) -> None:
    value = _sample(kind)
    shown = redact_key(value)
    assert shown == value[:8] + "..."
    assert value[8:] not in shown


@pytest.mark.parametrize("kind", KeyKind)
def test_a_derived_key_depends_on_its_seed_alone(kind: KeyKind) -> None:
    seeds = [bytes(32), b"\xff" * 32, *(bytes([number]) * 32 for number in range(1, 50))]
    keys = [derived_key(kind, seed) for seed in seeds]
    assert keys == [derived_key(kind, seed) for seed in seeds]
    assert len({key.value for key in keys}) == len(seeds)
    for key in keys:
        assert key_kind(key.value) is kind
        assert (key.digest, key.redacted_value) == (key_digest(key.value), redact_key(key.value))
