"""Counts repeated rejections of the same kind, so that a flood of rejected calls causes only a few
activity records."""

from collections import Counter
from collections.abc import Hashable

from msgspec.structs import replace

from tollkeeper.domain.access import OrganizationId
from tollkeeper.domain.activity import ActivityRecord
from tollkeeper.domain.traffic import STEP_S

# The maximum numbers of kinds of rejections that a process counts separately: in total, and for one
# organization.
KINDS_MAX = 10_000
KINDS_OF_ORGANIZATION_MAX = 256
# The number of rejections of one organization that a process records one by one within a minute.
RECORDED_OF_ORGANIZATION_MAX = 20


def is_refusal(record: ActivityRecord) -> bool:
    """Tells whether the call was rejected before money was reserved for it, and before a policy
    judged it."""
    return record.status >= 400 and record.settlement == "none" and not record.verdicts


class _Repeated:
    """Counts the rejections of one kind, except the first rejection, which has its own record."""

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
        """Returns the record of the last rejection, with the number and the mean duration of all
        counted rejections. Returns None if no rejection was counted."""
        if self.last is None:
            return None
        return replace(self.last, requests=self.count, duration_us=self.duration_us // self.count)


class RepeatedRefusals:
    """Counts rejections by kind, after the first ones of each organization. Rejections are of the same
    kind if they have the same key, operation, model, status, error code and field, and are in the
    same step (five minutes) of the roll-ups. If an organization has too many kinds, further
    rejections are grouped only by status, error code and step; their record names the key and model
    of the last rejection."""

    def __init__(self) -> None:
        self._kinds: dict[OrganizationId, dict[Hashable, _Repeated]] = {}
        self._size = 0
        self._recorded: Counter[OrganizationId] = Counter()

    @property
    def is_full(self) -> bool:
        return self._size >= KINDS_MAX

    def repeats(self, record: ActivityRecord) -> bool:
        """Returns False if the rejection gets its own record: it is the first of its kind since the
        last `take`, or one of the organization's first ones. Otherwise counts the rejection and
        returns True."""
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
        """Returns one record for each kind that has repeated rejections, and resets the counts."""
        kinds, self._kinds, self._size = self._kinds, {}, 0
        self._recorded.clear()
        records = (repeated.record() for by_kind in kinds.values() for repeated in by_kind.values())
        return [record for record in records if record is not None]
