"""Tests that request ids are UUIDs of version 7, contain the time, and are random in all other bits."""

from functools import reduce
from operator import and_, or_
from time import time
from uuid import RFC_4122, UUID

from tollkeeper.core.months import time_ms_of_id
from tollkeeper.core.runtime.request_ids import new_request_id, new_request_id_text

# More ids than are created at once.
_COUNT = 2000
# The bits of the version and of the variant.
_FIXED = (0xF << 76) | (0b11 << 62)


def test_ids_are_uuids_with_the_time() -> None:
    texts = [new_request_id_text() for _ in range(_COUNT)]
    ids = list(map(UUID, texts))
    assert list(map(str, ids)) == texts
    assert len(set(texts)) == _COUNT
    assert {(one.version, one.variant) for one in ids} == {(7, RFC_4122)}
    assert abs(time_ms_of_id(new_request_id()) - time() * 1000) < 10_000


def test_every_other_bit_is_random() -> None:
    random_bits = (1 << 80) - 1 & ~_FIXED
    ids = [new_request_id().int for _ in range(_COUNT)]
    assert reduce(or_, ids) & random_bits == random_bits
    assert reduce(and_, ids) & random_bits == 0
