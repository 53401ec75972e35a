"""Defines request ids that contain their time, and the ledger months that follow from them.

A reservation has the id of its request, which is a UUID of version 7: its first 48 bits are the
milliseconds since 1970. So the id alone determines the ledger month of a reservation, its
resolution and its overage, whatever any clock says later.
"""

import re
from dataclasses import dataclass
from uuid import UUID, SafeUUID

from tollkeeper.domain.errors import InvalidRequest

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)

_TIME_BITS = 48
_BITS_BEHIND_TIME = 128 - _TIME_BITS
_VERSION = 7
_VARIANT = 2 << 62
# The random bits of an id: all but time, version and variant.
_RANDOM_HIGH = (1 << 12) - 1
_RANDOM_LOW = (1 << 62) - 1
RANDOM_BITS = 74
_MONTHS_PER_YEAR = 12
_MS_PER_DAY = 86_400_000
_MONTH_FORMAT = re.compile(r"(\d{4})-(\d{2})")


def request_id(now_ms: int, randomness: int) -> UUID:
    """Creates the id of a request that arrived at this time. It contains `RANDOM_BITS` bits of
    `randomness`."""
    time = now_ms << _BITS_BEHIND_TIME
    high = (randomness >> 62 & _RANDOM_HIGH) << 64
    return UUID(int=time | (_VERSION << 76) | high | _VARIANT | (randomness & _RANDOM_LOW))


def id_of_text(text: str) -> UUID:
    """Parses an id in the usual form."""
    made = _new_uuid(UUID)
    # Takes a quarter of the constructor's time, which parses every notation. A UUID does not allow
    # normal assignment.
    _set(made, "int", int(text.replace("-", ""), 16))
    _set(made, "is_safe", _UNKNOWN)
    return made


def time_ms_of_id(identity: UUID) -> int:
    """Returns the arrival time of this id's request, in milliseconds since 1970, by its machine's
    clock."""
    return identity.int >> _BITS_BEHIND_TIME


_new_uuid = object.__new__
_set = object.__setattr__
_UNKNOWN = SafeUUID.unknown


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """Represents a month in UTC."""

    year: int
    month: int

    @property
    def number(self) -> int:
        """Returns the stored form: 202611 is November 2026."""
        return self.year * 100 + self.month

    @property
    def next(self) -> "Month":
        return self.plus(1)

    @property
    def first_day(self) -> int:
        """Returns the days since 1970-01-01."""
        # Years begin in March here, so that a leap day is the last day of the year.
        year = self.year - (self.month <= 2)
        from_march = (self.month - 3) % _MONTHS_PER_YEAR
        day_of_year = (153 * from_march + 2) // 5
        return 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 719_468

    @property
    def first_id(self) -> UUID:
        """Returns the smallest id of a request in this month."""
        return UUID(int=(self.first_day * _MS_PER_DAY) << _BITS_BEHIND_TIME)

    @property
    def end_id(self) -> UUID:
        """Returns the smallest id after this month."""
        return self.next.first_id

    def plus(self, months: int) -> "Month":
        year, month = divmod(self.year * _MONTHS_PER_YEAR + self.month - 1 + months, 12)
        return Month(year, month + 1)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


def month_of_number(number: int) -> Month:
    return Month(*divmod(number, 100))


def month_of_id(identity: UUID) -> Month:
    """Returns the ledger month of a reservation with this id."""
    return month_of_day(time_ms_of_id(identity) // _MS_PER_DAY)


def month_of_day(day: int) -> Month:
    """Returns the month of a day, counted from 1970-01-01."""
    # No year is longer than 366 days, and no month is shorter than 28.
    guess = Month(1970 + day // 366, 1)
    while guess.plus(_MONTHS_PER_YEAR).first_day <= day:
        guess = guess.plus(_MONTHS_PER_YEAR)
    while guess.next.first_day <= day:
        guess = guess.next
    return guess


def month_of_text(text: str) -> Month:
    """Reads `YYYY-MM`."""
    found = _MONTH_FORMAT.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= _MONTHS_PER_YEAR or int(found[1]) < 1970:
        raise InvalidRequest(f"A month is written YYYY-MM, as in 2026-09: {text}", param="month")
    return Month(int(found[1]), int(found[2]))
