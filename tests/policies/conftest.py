"""One court for all policy tests, and a fresh tenant for each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.policies.court import Court, sitting
from tests.upstream import chat


@pytest.fixture(scope="package")
async def house(data_dir: Path, conninfo: str) -> AsyncIterator[Court]:
    model = {"input_modalities": ["text", "image"], "context_length": 1_000_000}
    async with sitting(data_dir, conninfo, model=model) as court:
        yield court


@pytest.fixture
async def court(house: Court) -> Court:
    house.model.play(chat())
    house.judge.reset()
    return await house.with_tenant()
