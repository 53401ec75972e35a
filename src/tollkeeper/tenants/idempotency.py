"""Lets clients repeat a creation safely. The Idempotency-Key's record is written in the resource's
transaction, so a concurrent request never creates a second one, and a failure leaves no record."""

import hashlib
from dataclasses import dataclass

from tollkeeper.core.access import OrganizationId
from tollkeeper.core.conventions import SECRET_REPLAY_S
from tollkeeper.core.errors import IdempotencyConflict
from tollkeeper.core.runtime.clock import Clock
from tollkeeper.core.runtime.vault import Vault
from tollkeeper.database.database import Connection, Database
from tollkeeper.tenants import idempotency_store as records

_SEAL_PURPOSE = "idempotent-secret"


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    organization_id: OrganizationId
    operation: str
    key: str
    # A canonical form of path and body, equal for requests that mean the same.
    meaning: bytes

    @property
    def record_key(self) -> records.RecordKey:
        # Stored as a digest only: the key decrypts the stored secret, so it mustn't be there too.
        digest = hashlib.sha256(self.key.encode()).digest()
        return records.RecordKey(self.organization_id, self.operation, digest)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.meaning).digest()


@dataclass(frozen=True, slots=True)
class Replay:
    """What the first request created. `secret` is the value of an API key, and None after a day."""

    resource_id: str
    secret: str | None


class Idempotency:
    def __init__(self, vault: Vault, clock: Clock) -> None:
        self._vault = vault
        self._clock = clock

    async def claim(
        self, connection: Connection, request: IdempotentRequest, resource_id: str
    ) -> Replay | None:
        """None for the first request, and the caller must then create `resource_id`. Otherwise what
        the first one created. Raises IdempotencyConflict if that one had different content."""
        now = self._clock()
        is_first = await records.claim(
            connection,
            request.record_key,
            request_digest=request.digest,
            resource_id=resource_id,
            now=now,
        )
        if is_first:
            return None
        record = await records.find(connection, request.record_key)
        assert record is not None, "a record is never deleted"
        if record.request_digest != request.digest:
            raise IdempotencyConflict(param="Idempotency-Key")
        return Replay(record.resource_id, self._secret(request, record, now))

    async def keep_secret(
        self, connection: Connection, request: IdempotentRequest, secret: str
    ) -> None:
        """The value of an API key, encrypted, for repeated requests."""
        sealed = self._vault.seal(secret.encode(), _SEAL_PURPOSE, *_seal_context(request))
        await records.keep_secret(connection, request.record_key, sealed)

    async def forget_old_secrets(self, database: Database) -> int:
        """Older than a day. Returns how many."""
        async with database.autocommit() as connection:
            return await records.forget_secrets(connection, before=self._clock() - SECRET_REPLAY_S)

    def _secret(self, request: IdempotentRequest, record: records.Record, now: int) -> str | None:
        if record.sealed_secret is None or now - record.created_at >= SECRET_REPLAY_S:
            return None
        plain = self._vault.unseal(record.sealed_secret, _SEAL_PURPOSE, *_seal_context(request))
        return None if plain is None else plain.decode()


def _seal_context(request: IdempotentRequest) -> tuple[bytes, ...]:
    return request.organization_id.bytes, request.operation.encode(), request.key.encode()
