"""Counts repeated rejections, so a flood of them makes only a few activity records."""

from collections import Counter
from collections.abc import Hashable

from msgspec.structs import replace

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.activity import ActivityRecord
from tollkeeper.reports.traffic.rule import STEP_S

# Kinds of rejections that a process counts separately.
KINDS_MAX = 10_000
KINDS_OF_ORGANIZATION_MAX = 256
# One by one, within a minute.
RECORDED_OF_ORGANIZATION_MAX = 20


def is_refusal(record: ActivityRecord) -> bool:
    """Rejected before a hold and before any policy judged it."""
    return record.status >= 400 and record.settlement == "none" and not record.verdicts


class _Repeated:
    """All rejections of a kind but the first, which has its own record."""

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
        """The last rejection's record, with the number and mean duration of all. None if none was
        counted."""
        if self.last is None:
            return None
        return replace(self.last, requests=self.count, duration_us=self.duration_us // self.count)


class RepeatedRefusals:
    """Counts rejections by kind: same key, operation, model, status, error code and field, in the
    same step of the roll-ups. If an organization has too many kinds, the rest is grouped only by
    status, error code and step, and the record names the last rejection's key and model."""

    def __init__(self) -> None:
        self._kinds: dict[OrganizationId, dict[Hashable, _Repeated]] = {}
        self._size = 0
        self._recorded: Counter[OrganizationId] = Counter()

    @property
    def is_full(self) -> bool:
        return self._size >= KINDS_MAX

    def repeats(self, record: ActivityRecord) -> bool:
        """False if it gets its own record: the first of its kind since the last `take`, or one of
        the organization's first. Otherwise counts it."""
        kinds = self._kinds.setdefault(record.organization_id, {})
        step = record.started_at_ms // 1000 // STEP_S
        status_and_step = (record.status, record.error_code, step)
        request = (record.key_id, record.operation, record.model, record.error_param)
        kind: Hashable = (*request, *status_and_step)
        if kind not in kinds and len(kinds) >= KINDS_OF_ORGANIZATION_MAX:
            kind = status_and_step
        repeated = kinds.get(kind)
        if repeated is None:
            kinds[kind] = _Repeated()
            self._size += 1
            self._recorded[record.organization_id] += 1
            return False
        if self._recorded[record.organization_id] < RECORDED_OF_ORGANIZATION_MAX:
            self._recorded[record.organization_id] += 1
            return False
        repeated.add(record)
        return True

    def take(self) -> list[ActivityRecord]:
        kinds, self._kinds, self._size = self._kinds, {}, 0
        self._recorded.clear()
        records = (repeated.record() for by_kind in kinds.values() for repeated in by_kind.values())
        return [record for record in records if record is not None]
