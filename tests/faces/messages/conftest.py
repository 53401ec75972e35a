"""Fixtures for the Messages tests: gateways over scripted upstreams with and without a tokenizer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import own_database
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway, scripted_gateway
from tests.support.token_counts import BARE, counts
from tests.support.upstream import Upstream


@pytest.fixture(scope="session")
def conninfo(shared_conninfo: str) -> str:
    """Creates a separate database: these tests verify the whole ledger, so no other test may use it."""
    return own_database(shared_conninfo, "messages")


@pytest.fixture(scope="package")
async def estimating(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(
        data_dir,
        conninfo,
        more_models=[_bare()],
    ) as running:
        yield running


@pytest.fixture(scope="package")
async def counting(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """Starts a gateway whose upstream answers every token count with 42 and records its requests."""
    async with (
        Upstream(counts(42)) as upstream,
        scripted_gateway(
            data_dir,
            conninfo,
            upstream,
            backend={"tokenize_path": "/tokenize"},
            model={
                "input_modalities": ["text", "image", "file"],
                "supported_features": ["tools", "json_mode", "structured_outputs", "reasoning"],
                "options": {"thinking": "chat_template_kwargs.enable_thinking"},
            },
            more_models=[_bare()],
        ) as running,
    ):
        yield running


@pytest.fixture
async def scripted(counting: ScriptedGateway) -> ScriptedGateway:
    counting.upstream.play(counts(42))
    return await counting.with_tenant(credit=0)


def _bare() -> dict[str, Any]:
    return {"id": BARE, "supported_features": []}
