"""Records in memory when each API key was last used, and writes these times for many keys together.

The times are in a map by key, and the background work in `services.upkeep` writes the map at an
interval. A queue (`services.batches`) would not fit: a key that is used a thousand times between two
writes needs only one write.
"""

from collections.abc import Iterator
from typing import TypeAlias

from tollkeeper.domain.access import Caller, KeyId, KeyKind, OrganizationId
from tollkeeper.storage import admin_keys, project_keys
from tollkeeper.storage.database import Database

# Organization, key and Unix time of the last use, by the id of the key as an integer, which hashes
# faster than a UUID.
_LastUses: TypeAlias = dict[int, tuple[OrganizationId, KeyId, int]]

# The maximum number of keys whose use is recorded between two writes. The use of further keys is
# not recorded until the next write.
_KEYS_MAX = 100_000
# The maximum number of keys in one statement. With many more keys, PostgreSQL would scan the whole
# table instead of using the index.
_KEYS_PER_STATEMENT = 1_000


class KeyUse:
    def __init__(self) -> None:
        self._last_uses: dict[KeyKind, _LastUses] = {kind: {} for kind in KeyKind}

    def note(self, kind: KeyKind, caller: Caller, now: int) -> None:
        last_uses, key_id = self._last_uses[kind], caller.key_id
        if len(last_uses) < _KEYS_MAX or key_id.int in last_uses:
            last_uses[key_id.int] = (caller.organization_id, key_id, now)

    async def write(self, database: Database) -> None:
        """Writes the recorded times. If a write fails, the times that were not written stay for the
        next write. If a key was used again meanwhile, only its newer time stays."""
        writers = {KeyKind.PROJECT: project_keys.record_use, KeyKind.ADMIN: admin_keys.record_use}
        for kind, write in writers.items():
            last_uses, self._last_uses[kind] = self._last_uses[kind], {}
            try:
                for part in _parts(last_uses):
                    async with database.autocommit() as connection:
                        await write(connection, part)
                    for _, key_id, _ in part:
                        del last_uses[key_id.int]
            except BaseException:
                self._last_uses[kind] = last_uses | self._last_uses[kind]
                raise


def _parts(last_uses: _LastUses) -> Iterator[list[tuple[OrganizationId, KeyId, int]]]:
    """Yields the keys in sorted parts. The fixed order prevents a deadlock between two processes
    that write the same keys."""
    keys = sorted(last_uses.values())
    for first in range(0, len(keys), _KEYS_PER_STATEMENT):
        yield keys[first : first + _KEYS_PER_STATEMENT]
