"""The digest of a close covers the previous one, so the closes form a chain."""

import hashlib

from tollkeeper.core.months import Month
from tollkeeper.database.database import Connection
from tollkeeper.money.months import store as ledger_months

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
