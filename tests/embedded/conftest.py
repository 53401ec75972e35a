"""One engine for the tests that only ask it; those that end it start their own."""

from collections.abc import AsyncIterator

import pytest

from tests.support.engine import address_of, running_engine
from tollkeeper.embedded.engine import EmbeddedEngine
from tollkeeper.embedded.engine_address import EngineAddress


@pytest.fixture(scope="session")
async def engine() -> AsyncIterator[EmbeddedEngine]:
    async with running_engine() as running:
        yield running


@pytest.fixture(scope="session")
def address(engine: EmbeddedEngine) -> EngineAddress:
    return address_of(engine)
