"""One gateway over one scripted upstream for all Responses tests, and a fresh tenant for each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.databases import own_database
from tests.inference.lab import Lab, laboratory
from tests.responses.answers import BARE
from tests.upstream import Upstream, chat
from tests.upstream_responses import respond as native_respond


@pytest.fixture(scope="session")
def conninfo(conninfo: str) -> str:
    """The whole ledger is verified here: no other test may have touched it."""
    return own_database(conninfo, "responses")


@pytest.fixture(scope="package")
async def rig(data_dir: Path, conninfo: str) -> AsyncIterator[Lab]:
    """A model that can do everything, and one that can do nothing but chat."""
    async with (
        Upstream(chat()) as upstream,
        laboratory(
            data_dir,
            conninfo,
            upstream,
            extensions={"model_listing": True},
            model={
                "input_modalities": ["text", "image", "file"],
                "supported_features": [
                    *("tools", "json_mode", "structured_outputs"),
                    *("logprobs", "reasoning", "web_search"),
                ],
                "supported_sampling_parameters": [
                    *("temperature", "top_p", "frequency_penalty", "presence_penalty"),
                ],
                "options": {
                    "verbosity": "chat_template_kwargs.verbosity",
                    "service_tier": "service_tier",
                    "reasoning.summary": "reasoning_summary",
                },
            },
            more_models=[
                {
                    "id": BARE,
                    "supported_features": [],
                    "supported_sampling_parameters": [],
                },
            ],
        ) as running,
    ):
        yield running


@pytest.fixture(scope="package")
async def native_rig(data_dir: Path, conninfo: str) -> AsyncIterator[Lab]:
    """The same gateway over an upstream that speaks Responses itself."""
    async with (
        Upstream(native_respond()) as upstream,
        laboratory(
            data_dir,
            conninfo,
            upstream,
            ordinary=native_respond,
            backend={"protocol": "responses"},
            model={
                "input_modalities": ["text", "image", "file", "audio"],
                "supported_features": [
                    *("tools", "json_mode", "structured_outputs"),
                    *("logprobs", "reasoning", "web_search"),
                ],
                "supported_sampling_parameters": [
                    *("temperature", "top_p", "frequency_penalty", "presence_penalty"),
                    *("seed", "stop", "logit_bias"),
                ],
                "pricing": {
                    "prompt": "0.0000002",
                    "completion": "0.0000008",
                    "input_cache_read": "0.00000005",
                },
            },
        ) as running,
    ):
        yield running


@pytest.fixture
async def native(native_rig: Lab) -> Lab:
    """After an answer that went well: three failures in a row would rest the upstream."""
    await native_rig.works()
    return await native_rig.with_tenant()


@pytest.fixture
async def lab(rig: Lab) -> Lab:
    rig.upstream.play(chat())
    return await rig.with_tenant()
