"""The gateways that the Responses tests of one folder share, and a fresh tenant for each test.

A `conftest.py` imports these fixtures and gives them a database of its own (`conninfo`).
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.responses_answers import BARE
from tests.support.scripted_gateway import ScriptedGateway, answering_gateway, scripted_gateway
from tests.support.upstream import Upstream
from tests.support.upstream_responses import respond as native_respond


@pytest.fixture(scope="package")
async def shared_scripted(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """A model that can do everything, and one that can do nothing but chat."""
    async with answering_gateway(
        data_dir,
        conninfo,
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
    ) as running:
        yield running


@pytest.fixture(scope="package")
async def shared_native(data_dir: Path, conninfo: str) -> AsyncIterator[ScriptedGateway]:
    """The same gateway over an upstream that speaks Responses itself."""
    async with (
        Upstream(native_respond()) as upstream,
        scripted_gateway(
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
            more_models=[{"id": BARE, "supported_features": []}],
        ) as running,
    ):
        yield running


@pytest.fixture
async def native(shared_native: ScriptedGateway) -> ScriptedGateway:
    """After an answer that went well: three failures in a row would rest the upstream."""
    await shared_native.works()
    return await shared_native.with_tenant()
