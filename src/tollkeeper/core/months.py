"""Request ids, and the ledger months that follow from them.

A request id is a UUID of version 7: its first 48 bits are the milliseconds since 1970. A reservation has the
id of its request, so the id alone gives the month of the reservation, its resolution and its overage,
whenever they're written.
"""

import re
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tollkeeper.core.errors import InvalidRequest

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)

_TIME_BITS = 48
_BITS_AFTER_TIME = 128 - _TIME_BITS
_VERSION = 7
_VARIANT = 2 << 62
# All bits but time, version and variant.
_RANDOM_HIGH = (1 << 12) - 1
_RANDOM_LOW = (1 << 62) - 1
RANDOM_BITS = 74
_MONTHS_PER_YEAR = 12
_MS_PER_DAY = 86_400_000
_MONTH_FORMAT = re.compile(r"(\d{4})-(\d{2})")


def request_id(now_ms: int, randomness: int) -> UUID:
    """The id has the lowest `RANDOM_BITS` of `randomness`."""
    time = now_ms << _BITS_AFTER_TIME
    high = (randomness >> 62 & _RANDOM_HIGH) << 64
    return UUID(int=time | (_VERSION << 76) | high | _VARIANT | (randomness & _RANDOM_LOW))


def id_of_text(text: str) -> UUID:
    """With hyphens, in less time than `UUID(text)`."""
    return msgspec.convert(text, UUID)


def time_ms_of_id(identity: UUID) -> int:
    """When the request arrived, by the clock of its machine."""
    return identity.int >> _BITS_AFTER_TIME


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """In UTC."""

    year: int
    month: int

    @property
    def number(self) -> int:
        """As stored: 202611 is November 2026."""
        return self.year * 100 + self.month

    @property
    def next(self) -> "Month":
        return self.plus(1)

    @property
    def first_day(self) -> int:
        """Counted from 1970-01-01."""
        # Years begin in March here, so a leap day is the last of its year.
        year = self.year - (self.month <= 2)
        from_march = (self.month - 3) % _MONTHS_PER_YEAR
        day_of_year = (153 * from_march + 2) // 5
        return 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 719_468

    @property
    def first_id(self) -> UUID:
        return UUID(int=(self.first_day * _MS_PER_DAY) << _BITS_AFTER_TIME)

    @property
    def end_id(self) -> UUID:
        """The smallest after this month."""
        return self.next.first_id

    def plus(self, months: int) -> "Month":
        year, month = divmod(self.year * _MONTHS_PER_YEAR + self.month - 1 + months, 12)
        return Month(year, month + 1)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


def month_of_number(number: int) -> Month:
    return Month(*divmod(number, 100))


def month_of_id(identity: UUID) -> Month:
    return month_of_day(time_ms_of_id(identity) // _MS_PER_DAY)


def month_of_day(day: int) -> Month:
    # Never too late, because no year is longer than 366 days.
    guess = Month(1970 + day // 366, 1)
    while guess.plus(_MONTHS_PER_YEAR).first_day <= day:
        guess = guess.plus(_MONTHS_PER_YEAR)
    while guess.next.first_day <= day:
        guess = guess.next
    return guess


def month_of_text(text: str) -> Month:
    """`YYYY-MM`. Raises InvalidRequest if it isn't a month from 1970 on."""
    match = _MONTH_FORMAT.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= _MONTHS_PER_YEAR or int(match[1]) < 1970:
        raise InvalidRequest(f"A month is written YYYY-MM, as in 2026-09: {text}", param="month")
    return Month(int(match[1]), int(match[2]))
