"""The digest of a close covers the previous one, so the closes form a chain."""

import hashlib

from tollkeeper.domain.months import Month
from tollkeeper.storage import ledger_months
from tollkeeper.storage.database import Connection

_NO_CLOSE_BEFORE = bytes(32)


async def close_digest(
    connection: Connection, month: Month, reservations: int, previous_digest: bytes | None
) -> bytes:
    """Over the previous digest, the month, its number of reservations, and its close's stored
    rows."""
    digest = hashlib.sha256(previous_digest or _NO_CLOSE_BEFORE)
    digest.update(f"close|{month.number}|{reservations}\n".encode())
    async for row in ledger_months.stream_close_rows(connection, month):
        digest.update(f"{row}\n".encode())
    return digest.digest()
