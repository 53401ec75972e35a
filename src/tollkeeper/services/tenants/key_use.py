"""When keys were last used: noted in memory for each request, and written for many at once.

This is a map with the latest time of each key, which `upkeep` writes at its own interval. It is not a
queue (`services.batches`): a key that is used a thousand times is one row.
"""

from collections.abc import Iterator
from typing import TypeAlias

from tollkeeper.domain.access import Caller, KeyId, KeyKind, OrganizationId
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Database

# By the number of the key's id, whose hash is faster than that of the id.
_Noted: TypeAlias = dict[int, tuple[OrganizationId, KeyId, int]]

# A process notes at most this many keys between two writes. Further keys are noted after the next.
_NOTED_MAX = 100_000
# One statement writes so many. With far more of them the server would read the whole table rather
# than look each of them up.
_WRITTEN_AT_ONCE = 1_000


class KeyUse:
    def __init__(self) -> None:
        self._noted: dict[KeyKind, _Noted] = {kind: {} for kind in KeyKind}

    def note(self, kind: KeyKind, caller: Caller, now: int) -> None:
        noted, key_id = self._noted[kind], caller.key_id
        if len(noted) < _NOTED_MAX or key_id.int in noted:
            noted[key_id.int] = (caller.organization_id, key_id, now)

    async def write(self, database: Database) -> None:
        """Writes what was noted. Where a write fails, its keys are noted again, unless they were
        used since."""
        writers = {KeyKind.PROJECT: project_keys.record_use, KeyKind.ADMIN: admin_keys.record_use}
        for kind, write in writers.items():
            noted, self._noted[kind] = self._noted[kind], {}
            try:
                for part in _parts(noted):
                    async with database.reading() as connection:
                        await write(connection, part)
                    for _, key_id, _ in part:
                        del noted[key_id.int]
            except BaseException:
                self._noted[kind] = noted | self._noted[kind]
                raise


def _parts(noted: _Noted) -> Iterator[list[tuple[OrganizationId, KeyId, int]]]:
    """In one order: two processes that write the same keys wait for each other and do not deadlock."""
    keys = sorted(noted.values())
    for first in range(0, len(keys), _WRITTEN_AT_ONCE):
        yield keys[first : first + _WRITTEN_AT_ONCE]
