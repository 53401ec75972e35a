"""Tests ledger months: how they are read from ids, and which ids are their bounds."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.months import (
    RANDOM_BITS,
    Month,
    id_of_text,
    month_of_day,
    month_of_id,
    month_of_number,
    month_of_text,
    request_id,
)

_RANDOMNESS = st.integers(0, 2**RANDOM_BITS - 1)
_TIMES = st.integers(86_400, 7_258_118_400).map(lambda second: datetime.fromtimestamp(second, UTC))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


@given(_TIMES, _RANDOMNESS)
def test_an_id_carries_its_month(moment: datetime, randomness: int) -> None:
    identity = request_id(_ms(moment), randomness)
    month = Month(moment.year, moment.month)
    assert (identity.version, identity.variant) == (7, "specified in RFC 4122")
    assert month_of_id(identity) == month
    assert month.first_id <= identity < month.end_id


@given(_TIMES, _RANDOMNESS, _RANDOMNESS)
def test_ids_differ_in_every_random_bit(moment: datetime, one: int, other: int) -> None:
    same = request_id(_ms(moment), one) == request_id(_ms(moment), other)
    assert same is (one == other)


@given(st.integers(0, 2**128 - 1))
def test_every_id_lies_between_the_bounds_of_its_month(value: int) -> None:
    """Checks ids of all UUID versions, because ids from before ledger months existed are random."""
    identity = UUID(int=value)
    month = month_of_id(identity)
    assert month.first_id <= identity
    if month.year < 10_000:
        assert identity < month.end_id


@given(st.integers(1970, 2400), st.integers(1, 12))
def test_days_are_counted_as_everybody_counts_them(year: int, number: int) -> None:
    first = datetime(year, number, 1, tzinfo=UTC)
    month = Month(first.year, first.month)
    assert month.first_day == int(first.timestamp()) // 86_400
    assert month_of_day(month.first_day) == month
    assert month_of_number(month.number) == month
    assert month_of_text(str(month)) == month
    assert month.plus(14).plus(-14) == month
    assert month < month.next


@each("text", ["", "2026", "2026-13", "2026-00", "2026-9", "202609", "1969-12"])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        month_of_text(text)
    assert refused.value.param == "month"


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_an_id_is_read_back_from_its_text(now_ms: int, randomness: int) -> None:
    identity = request_id(now_ms, randomness)
    read = id_of_text(str(identity))
    assert read == identity == UUID(str(read))
    assert hash(read) == hash(identity)
    assert repr(read) == repr(identity)
    assert read.is_safe is identity.is_safe
