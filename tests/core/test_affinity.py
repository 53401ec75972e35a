"""Tests that affinity keys are isolated between tenants, unambiguous, and the same in every process."""

import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.access import OrganizationId, ProjectId
from tollkeeper.core.affinity import CachePurpose, affinity_key, isolated_text, rendezvous_order

SECRET = b"s" * 32
ORGANIZATION = OrganizationId(uuid.UUID(int=1))
PROJECT = ProjectId(uuid.UUID(int=2))


def test_every_part_counts() -> None:
    keys = {
        affinity_key(SECRET, ORGANIZATION, PROJECT, "a"),
        affinity_key(b"t" * 32, ORGANIZATION, PROJECT, "a"),
        affinity_key(SECRET, OrganizationId(PROJECT), PROJECT, "a"),
        affinity_key(SECRET, ORGANIZATION, ProjectId(ORGANIZATION), "a"),
        affinity_key(SECRET, OrganizationId(PROJECT), ProjectId(ORGANIZATION), "a"),
        affinity_key(SECRET, ORGANIZATION, PROJECT, "b"),
        affinity_key(SECRET, ORGANIZATION, PROJECT, ""),
    }
    assert len(keys) == 7
    assert {len(key) for key in keys} == {32}


def test_a_key_is_the_same_in_every_process() -> None:
    assert affinity_key(SECRET, ORGANIZATION, PROJECT, "session").hex() == (
        "3087a6f63fa34e258e0b0cefb84f4d0523952a94bca5143fb56ee9749ba58045"
    )


def test_purposes_are_apart() -> None:
    texts = {isolated_text(SECRET, ORGANIZATION, PROJECT, purpose, "a") for purpose in CachePurpose}
    texts.add(affinity_key(SECRET, ORGANIZATION, PROJECT, "a").hex())
    assert len(texts) == 3
    assert {len(text) for text in texts} == {64}


@given(st.text())
def test_the_callers_text_does_not_travel(text: str) -> None:
    isolated = isolated_text(SECRET, ORGANIZATION, PROJECT, CachePurpose.CACHE_SALT, text)
    assert isolated.isalnum()
    assert len(text) < 8 or text not in isolated


def test_half_of_a_surrogate_pair_is_a_text_too() -> None:
    assert affinity_key(SECRET, ORGANIZATION, PROJECT, "\ud800")


@given(st.binary(min_size=32, max_size=32), st.sets(st.text(min_size=1), min_size=1, max_size=8))
def test_order_depends_on_nothing_but_key_and_names(key: bytes, names: set[str]) -> None:
    order = rendezvous_order(key, names)
    assert sorted(order) == sorted(names)
    assert rendezvous_order(key, sorted(names, reverse=True)) == order
    for gone in names:
        without = [name for name in order if name != gone]
        assert rendezvous_order(key, names - {gone}) == without


def test_keys_spread_over_the_names() -> None:
    names = [f"http://10.0.0.{number}:8000/v1" for number in range(8)]
    first = Counter(
        rendezvous_order(affinity_key(SECRET, ORGANIZATION, PROJECT, str(number)), names)[0]
        for number in range(4000)
    )
    assert set(first) == set(names)
    assert max(first.values()) < 1.3 * 500
    assert min(first.values()) > 0.7 * 500


def test_two_organizations_with_one_session_are_independent() -> None:
    names = [f"http://10.0.0.{number}:8000/v1" for number in range(4)]
    other = OrganizationId(uuid.UUID(int=3))
    together = sum(
        rendezvous_order(affinity_key(SECRET, ORGANIZATION, PROJECT, str(number)), names)[0]
        == rendezvous_order(affinity_key(SECRET, other, PROJECT, str(number)), names)[0]
        for number in range(2000)
    )
    # With four replicas, a quarter of the sessions has the same first replica by chance.
    assert 0.2 * 2000 < together < 0.3 * 2000
