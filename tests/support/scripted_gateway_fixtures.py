"""The gateway over a scripted upstream that the tests of one file share.

Every folder has these fixtures. A file whose gateway differs from the ordinary one defines
`scripted_options`; a file or folder with another upstream defines `shared_scripted`.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_gateway import ScriptedGateway, answering_gateway


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    """What `scripted_gateway` is called with: sections of the settings, and its own arguments."""
    return {}


@pytest.fixture(scope="module")
async def shared_scripted(
    data_dir: Path, conninfo: str, scripted_options: dict[str, Any]
) -> AsyncIterator[ScriptedGateway]:
    async with answering_gateway(data_dir, conninfo, **scripted_options) as running:
        yield running


@pytest.fixture
async def scripted(shared_scripted: ScriptedGateway) -> ScriptedGateway:
    """The shared gateway for a fresh tenant with credit; its upstream answers as usual."""
    shared_scripted.upstream.play(shared_scripted.ordinary())
    return await shared_scripted.with_tenant()
