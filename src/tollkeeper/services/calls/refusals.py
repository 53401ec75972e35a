"""Counts rejections that a key repeats, so that a flood of rejected calls writes few records."""

from collections.abc import Hashable

from msgspec.structs import replace

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.traffic import STEP_S

# The maximum number of kinds that a process counts, for all organizations and for one.
KINDS_MAX = 10_000
KINDS_OF_ORGANIZATION_MAX = 256


def is_refusal(record: ActivityRecord) -> bool:
    """Tells whether the call was rejected before anything was reserved for it or judged."""
    return record.status >= 400 and record.settlement == "none" and not record.verdicts


class _Repeated:
    """Counts the rejections of one kind after the first one."""

    __slots__ = ("count", "duration_us", "last")

    def __init__(self) -> None:
        self.count = 0
        self.duration_us = 0
        self.last: ActivityRecord | None = None

    def add(self, record: ActivityRecord) -> None:
        self.count += 1
        self.duration_us += record.duration_us
        self.last = record

    def record(self) -> ActivityRecord | None:
        """Returns the last one, with the number and the mean duration of all."""
        if self.last is None:
            return None
        return replace(self.last, requests=self.count, duration_us=self.duration_us // self.count)


class RepeatedRefusals:
    """Groups rejections by kind: one key, operation, model, status and error code, in one step of
    the roll-ups. If an organization has very many kinds, further ones are counted by status and
    error code alone, under the latest key and model."""

    def __init__(self) -> None:
        self._kinds: dict[OrganizationId, dict[Hashable, _Repeated]] = {}
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size >= KINDS_MAX

    def repeats(self, record: ActivityRecord) -> bool:
        """Counts the rejection and returns True, unless it is the first of its kind since
        `take`."""
        kinds = self._kinds.setdefault(record.organization_id, {})
        step = record.started_at_ms // 1000 // STEP_S
        what = (record.status, record.error_code, step)
        kind: Hashable = (record.key_id, record.operation, record.model, *what)
        if kind not in kinds and len(kinds) >= KINDS_OF_ORGANIZATION_MAX:
            kind = what
        known = kinds.get(kind)
        if known is None:
            kinds[kind] = _Repeated()
            self._size += 1
            return False
        known.add(record)
        return True

    def take(self) -> list[ActivityRecord]:
        """Returns one record for the repeated rejections of each kind, and resets the counts."""
        kinds, self._kinds, self._size = self._kinds, {}, 0
        records = (repeated.record() for found in kinds.values() for repeated in found.values())
        return [record for record in records if record is not None]
