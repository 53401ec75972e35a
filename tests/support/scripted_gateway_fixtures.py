"""Provides the gateway in front of a scripted upstream that the tests of one file share.

All folders have these fixtures. A file that needs other settings defines `scripted_options`; a file or
folder that needs another upstream defines `shared_scripted`.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_gateway import ScriptedGateway, answering_gateway


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    """Returns the arguments of `scripted_gateway`: its own arguments, and sections of the settings."""
    return {}


@pytest.fixture(scope="module")
async def shared_scripted(
    data_dir: Path, conninfo: str, scripted_options: dict[str, Any]
) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(data_dir, conninfo, **scripted_options) as running:
        yield running


@pytest.fixture
async def scripted(shared_scripted: ScriptedGateway) -> ScriptedGateway:
    """Returns the shared gateway for a new tenant with credit. Its upstream plays the ordinary answer."""
    shared_scripted.upstream.play(shared_scripted.ordinary())
    return await shared_scripted.with_tenant()
