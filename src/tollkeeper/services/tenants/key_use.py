"""Keeps the time of each key's last use: noted in memory, and written to the database in batches."""

from tollkeeper.domain.access import KeyId, KeyKind
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Database

# The most keys of each kind that are noted between two writes. Uses of further keys are not noted.
_NOTED_MAX = 100_000


class KeyUse:
    def __init__(self) -> None:
        self._noted: dict[KeyKind, dict[KeyId, int]] = {kind: {} for kind in KeyKind}

    def note(self, kind: KeyKind, key_id: KeyId, now: int) -> None:
        noted = self._noted[kind]
        if key_id in noted or len(noted) < _NOTED_MAX:
            noted[key_id] = now

    async def write(self, database: Database) -> None:
        """Writes what was noted. After a failed write the same uses are noted again."""
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
