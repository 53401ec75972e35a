"""Provides the gateway with a scripted judge that the tests of one folder share.

A `conftest.py` imports these fixtures and defines `conninfo`, a separate database for them.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.judged_gateway import JudgedGateway, judged_gateway


@pytest.fixture(scope="package")
async def shared_judged(data_dir: Path, conninfo: str) -> AsyncIterator[JudgedGateway]:
    model = {
        "input_modalities": ["text", "image", "file"],
        "context_length": 1_000_000,
        "supported_features": ["tools", "structured_outputs", "reasoning", "web_search"],
        "options": {"prediction": "prediction"},
    }
    async with judged_gateway(data_dir, conninfo, model=model) as running:
        yield running


@pytest.fixture
async def judged(shared_judged: JudgedGateway) -> JudgedGateway:
    """Returns the same gateway for a new tenant."""
    return await shared_judged.for_next_test()
