"""Remembers when each API key was last used; `services.upkeep` writes the times. No queue
(`services.batches`): a key that's used a thousand times needs only one write."""

from collections.abc import Iterator
from typing import TypeAlias

from tollkeeper.core.access import Caller, KeyId, KeyKind, OrganizationId
from tollkeeper.database.database import Database
from tollkeeper.tenants import admin_keys_store as admin_keys
from tollkeeper.tenants import project_keys_store as project_keys

# By the key's id as an integer, which hashes faster than a UUID. Times are in Unix seconds.
_LastUses: TypeAlias = dict[int, tuple[OrganizationId, KeyId, int]]

# Between two writes. The use of further keys isn't recorded.
_KEYS_MAX = 100_000
# With many more, PostgreSQL would scan the whole table instead of using the index.
_KEYS_PER_STATEMENT = 1_000


class KeyUse:
    def __init__(self) -> None:
        self._last_uses: dict[KeyKind, _LastUses] = {kind: {} for kind in KeyKind}

    def note(self, kind: KeyKind, caller: Caller, now: int) -> None:
        last_uses, key_id = self._last_uses[kind], caller.key_id
        if len(last_uses) < _KEYS_MAX or key_id.int in last_uses:
            last_uses[key_id.int] = (caller.organization_id, key_id, now)

    async def write(self, database: Database) -> None:
        """What fails stays for the next write, unless the key was used again meanwhile."""
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
    """Sorted, so two processes that write the same keys can't deadlock."""
    keys = sorted(last_uses.values())
    for first in range(0, len(keys), _KEYS_PER_STATEMENT):
        yield keys[first : first + _KEYS_PER_STATEMENT]
