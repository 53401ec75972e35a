"""When keys were last used: noted in memory for each request, and written for many at once.

This is a map with the latest time of each key, which `upkeep` writes at its own interval. It is not a
queue (`services.batches`): a key that is used a thousand times is one row.
"""

from tollkeeper.domain.access import KeyId, KeyKind
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Database

# A process notes at most this many keys between two writes. Further keys are noted after the next.
_NOTED_MAX = 100_000


class KeyUse:
    def __init__(self) -> None:
        self._noted: dict[KeyKind, dict[KeyId, int]] = {kind: {} for kind in KeyKind}

    def note(self, kind: KeyKind, key_id: KeyId, now: int) -> None:
        noted = self._noted[kind]
        if len(noted) < _NOTED_MAX or key_id in noted:
            noted[key_id] = now

    async def write(self, database: Database) -> None:
        """Writes what was noted. Where the write fails, its keys are noted again, unless they were
        used since."""
        writers = {KeyKind.PROJECT: project_keys.record_use, KeyKind.ADMIN: admin_keys.record_use}
        for kind, write in writers.items():
            noted, self._noted[kind] = self._noted[kind], {}
            if not noted:
                continue
            try:
                async with database.reading() as connection:
                    await write(connection, noted)
            except BaseException:
                self._noted[kind] = noted | self._noted[kind]
                raise
