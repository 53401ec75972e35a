"""The gateway of the replayed attacks."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.support.databases import own_database


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    return own_database(shared_conninfo, "attacks")


@dataclass
class Bait:
    """An address that nobody has a reason to connect to."""

    url: str
    visits: list[bytes] = field(default_factory=list)


@pytest.fixture
async def bait() -> AsyncIterator[Bait]:
    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.visits.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    found = Bait(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield found
    server.close()
    await server.wait_closed()
