"""Fixtures for the replayed attacks: a separate database, and an address that records connections."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.support.databases import own_database
from tests.support.stream_server import StreamServer


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    return own_database(shared_conninfo, "attacks")


@dataclass
class Bait:
    """An address to which the gateway has no reason to connect, with the data that it received."""

    url: str
    visits: list[bytes] = field(default_factory=list)


@pytest.fixture
async def bait() -> AsyncIterator[Bait]:
    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.visits.append(await reader.read(1000))

    async with StreamServer(note) as server:
        found = Bait(f"http://127.0.0.1:{server.port}")
        yield found
