"""Provides the gateways that the Responses tests of one folder share, and a new tenant for each test.

A `conftest.py` imports these fixtures and defines `conninfo`, a separate database for them.
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
    """Runs a gateway with a model that supports all features, and a model that supports only chat."""
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
    """Runs a similar gateway in front of an upstream that speaks Responses itself."""
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
    """Makes a successful call first, because the upstream counts as down after three failures in a row."""
    await shared_native.works()
    return await shared_native.with_tenant()
