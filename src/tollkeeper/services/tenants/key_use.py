"""Records the last use of keys in memory, and writes many at once.

This is a map with the latest time of each key, which `upkeep` writes at its own interval. It is not
a queue (`services.batches`): a key that is used a thousand times is one row.
"""

from collections.abc import Iterator
from typing import TypeAlias

from tollkeeper.domain.access import Caller, KeyId, KeyKind, OrganizationId
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Database

# By the integer of the key's id, which hashes faster than the id.
_Noted: TypeAlias = dict[int, tuple[OrganizationId, KeyId, int]]

# The maximum number of recorded keys between two writes. Further keys are recorded after the next
# write.
_NOTED_MAX = 100_000
# The number of keys in one statement. For many more, the server would scan the whole table instead
# of looking each of them up.
_WRITTEN_AT_ONCE = 1_000


class KeyUse:
    def __init__(self) -> None:
        self._noted: dict[KeyKind, _Noted] = {kind: {} for kind in KeyKind}

    def note(self, kind: KeyKind, caller: Caller, now: int) -> None:
        noted, key_id = self._noted[kind], caller.key_id
        if len(noted) < _NOTED_MAX or key_id.int in noted:
            noted[key_id.int] = (caller.organization_id, key_id, now)

    async def write(self, database: Database) -> None:
        """Writes the recorded uses. If a write fails, its keys are recorded again, unless they were
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
    """Splits the keys in a fixed order, so that two processes that write the same keys do not
    deadlock."""
    keys = sorted(noted.values())
    for first in range(0, len(keys), _WRITTEN_AT_ONCE):
        yield keys[first : first + _WRITTEN_AT_ONCE]
