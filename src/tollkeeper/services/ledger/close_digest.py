"""Computes the digest of a close. The digest also covers the previous close, so that the closes form a
chain."""

import hashlib

from tollkeeper.domain.months import Month
from tollkeeper.storage import ledger_months
from tollkeeper.storage.database import Connection

# Stands for the digest of the previous close in the digest of the first close.
_NO_CLOSE_BEFORE = bytes(32)


async def close_digest(
    connection: Connection, month: Month, reservations: int, previous_digest: bytes | None
) -> bytes:
    """Returns the SHA-256 of the previous digest, the month, its number of reservations, and the
    rows of its close as they are stored now."""
    digest = hashlib.sha256(previous_digest or _NO_CLOSE_BEFORE)
    digest.update(f"close|{month.number}|{reservations}\n".encode())
    async for row in ledger_months.stream_close_rows(connection, month):
        digest.update(f"{row}\n".encode())
    return digest.digest()
