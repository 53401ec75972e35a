"""LiteLLM's proxy as a benchmarked gateway.

Its database needs a query engine that its `prisma` package downloads from a server when it runs.
That server could not be reached where this was written, so the proxy runs without a database. Its
cost of each call is read from a custom callback.
"""

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.journeys.clients.environments import python_environment

from bench.billing.gateways.base import (
    CHAT_PATH,
    RESPONSES_PATH,
    Booked,
    Gateway,
    Session,
    locked_version,
    provider_url,
)
from bench.billing.gateways.processes import running_program
from bench.billing.request import Request
from bench.billing.scenarios import Scenario
from bench.billing.trials import CARD, Starter, Trial, TrialSession, ask
from bench.billing.truth import PRICES
from bench.ports import free_port

_HERE = Path(__file__).parent
_LOCKS = _HERE.parents[1] / "locks"
# How long its asynchronous logging may take after the last answer.
_LOGGED_WITHIN_S = 15
# The provider's name in LiteLLM, and the path of the address that this provider is given.
_PROVIDERS = {
    "Azure, a hosted DeepSeek": ("azure_ai", "/v1"),
    "Azure OpenAI": ("azure", ""),
    "Anthropic, its compatible endpoint": ("openai", "/v1"),
    "Gemini, its compatible endpoint": ("openai", "/v1"),
    "Google Gemini, its compatible endpoint": ("openai", "/v1"),
    "Anthropic": ("anthropic", ""),
    "Gemini": ("gemini", "/v1beta/models/{name}"),
    "Vertex": ("gemini", "/v1beta/models/{name}"),
    "Amazon Bedrock": ("bedrock/converse", ""),
    "xAI": ("xai", "/v1"),
    "Mistral": ("mistral", "/v1"),
    "Groq": ("groq", "/v1"),
    "DeepSeek": ("deepseek", "/v1"),
    "Together": ("together_ai", "/v1"),
    "Fireworks": ("fireworks_ai", "/v1"),
    "OpenRouter": ("openrouter", "/v1"),
    "Perplexity": ("perplexity", "/v1"),
    "Moonshot": ("moonshot", "/v1"),
    "DashScope": ("dashscope", "/v1"),
    "vLLM": ("hosted_vllm", "/v1"),
    "LM Studio": ("lm_studio", "/v1"),
}
# Providers whose Responses endpoint LiteLLM calls under their own name.
_WITH_RESPONSES = ("azure", "xai", "perplexity")
_PRICES = {
    "prompt": "input_cost_per_token",
    "completion": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "input_audio": "input_cost_per_audio_token",
    "output_image": "output_cost_per_image_token",
}
_TIERED = ("prompt", "completion", "cache_read", "cache_write")


class LiteLLMSession(Session):
    def __init__(self, url: str, key: str, log: Path) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}
        self._log = log

    def request(self, scenario: Scenario) -> Request:
        path = CHAT_PATH if scenario.face == "chat" else RESPONSES_PATH
        return Request(self._url + path, self._headers, {**scenario.ask, "model": scenario.name})

    async def books(self, scenarios: list[Scenario], answers: dict[str, str]) -> dict[str, Booked]:
        await asyncio.sleep(_LOGGED_WITHIN_S)
        records: dict[str, list[dict[str, Any]]] = {}
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        for record in map(json.loads, lines):
            name = str(record["model_group"] or record["model"]).split("/")[-1]
            records.setdefault(name.removesuffix("--second"), []).append(record)
        return {scenario.name: _booked(records.get(scenario.name, [])) for scenario in scenarios}


def _booked(records: list[dict[str, Any]]) -> Booked:
    costs = [Decimal(str(record["response_cost"])) for record in records if record["response_cost"]]
    return Booked(sum(costs, Decimal(0)), record=records)


@dataclass(frozen=True)
class LiteLLM(Gateway):
    name: str = "LiteLLM"
    version: str = locked_version("litellm")

    @asynccontextmanager
    async def running(
        self, folder: Path, provider: int, scenarios: list[Scenario]
    ) -> AsyncIterator[LiteLLMSession]:
        models = [model for scenario in scenarios for model in _models(scenario, provider)]
        fallbacks = [
            {scenario.name: [scenario.fallback]}
            for scenario in scenarios
            if scenario.fault.falls_back
        ]
        settings: dict[str, Any] = {"callbacks": ["litellm_log.log"], "drop_params": True}
        config = {
            "model_list": models,
            "litellm_settings": settings | {"request_timeout": 60, "fallbacks": fallbacks},
            # A retry after a failed first answer, at once.
            "router_settings": {"num_retries": 1, "retry_after": 0, "disable_cooldowns": True},
        }
        async with running_litellm(folder, config) as (url, key):
            yield LiteLLMSession(url, key, folder / "log")

    def trial_starter(self, trial: Trial) -> Starter | str:
        if trial.kind != "race":
            return "could not run here: its database needs an engine that is downloaded"
        if trial.processes > 1:
            return "not run: its processes share budgets through Redis"
        return _on_trial


@asynccontextmanager
async def _on_trial(folder: Path, provider: int, trial: Trial) -> AsyncIterator[TrialSession]:
    """The budget is the one of a deployment, which works without a database."""
    parameters: dict[str, Any] = {
        "model": "openai/trial",
        "api_base": provider_url(provider, trial.name) + "/v1",
        "api_key": "unused",
        "max_budget": float(trial.budget or 0),
        "budget_duration": "1d",
        **_prices(PRICES[CARD]),
    }
    config = {
        "model_list": [{"model_name": "trial", "litellm_params": parameters}],
        "litellm_settings": {"callbacks": ["litellm_log.log"]},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    async with running_litellm(folder, config) as (url, key):
        headers = {"authorization": f"Bearer {key}"}

        async def booked() -> Decimal:
            await asyncio.sleep(_LOGGED_WITHIN_S)
            lines = (folder / "log").read_text().splitlines()
            return _booked([json.loads(line) for line in lines]).usd or Decimal(0)

        yield TrialSession([Request(url + CHAT_PATH, headers, {**ask(), "model": "trial"})], booked)


@asynccontextmanager
async def running_litellm(folder: Path, config: dict[str, Any]) -> AsyncIterator[tuple[str, str]]:
    """Run the proxy. Yields its address and its master key."""
    program = python_environment("litellm", _LOCKS).with_name("litellm")
    shutil.copy(_HERE / "litellm_log.py", folder)
    # YAML contains JSON.
    (folder / "config.yaml").write_text(json.dumps(config))
    port, key = free_port(), f"sk-{secrets.token_hex(24)}"
    command: list[str | Path] = [
        *(program, "--config", folder / "config.yaml", "--num_workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_MASTER_KEY": key,
        # Use the price list of the package. Otherwise LiteLLM would download the newest one.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "BILLING_LOG": str(folder / "log"),
        "AWS_REGION": "us-east-1",
    }
    url = f"http://127.0.0.1:{port}"
    async with running_program(command, folder, environment, f"{url}/health/liveliness"):
        yield url, key


def _models(scenario: Scenario, provider: int) -> list[dict[str, Any]]:
    models = [_model(scenario, scenario.name, provider)]
    if scenario.fault.falls_back:
        models.append(_model(scenario, scenario.fallback, provider))
        # The first model has other prices, at which nothing may be booked.
        models[0]["litellm_params"] |= {
            "input_cost_per_token": 0.000003,
            "output_cost_per_token": 0.000015,
        }
    return models


def _model(scenario: Scenario, name: str, provider: int) -> dict[str, Any]:
    who, protocol = scenario.exchange.who, scenario.exchange.protocol
    known = [prefix for prefix in _PROVIDERS if who.startswith(prefix)]
    kind, path = _PROVIDERS[max(known, key=len)] if known else ("openai", "/v1")
    if protocol == "responses" and kind not in _WITH_RESPONSES:
        kind, path = ("openai/responses" if scenario.face == "chat" else "openai"), "/v1"
    model = f"{kind}/{name}"
    if protocol == "bedrock_messages":
        model = f"bedrock/invoke/anthropic.{name}"
    url = provider_url(provider, name) + path.format(name=name)
    parameters: dict[str, Any] = {"model": model, "api_base": url, "api_key": "unused"}
    if kind == "azure":
        parameters["api_version"] = "2025-04-01-preview"
    if model.startswith("bedrock"):
        del parameters["api_key"]
        parameters |= {
            "aws_bedrock_runtime_endpoint": url,
            "aws_access_key_id": "unused",
            "aws_secret_access_key": "unused",
            "aws_region_name": "us-east-1",
        }
    if scenario.fault.stalls:
        parameters |= {"timeout": 10, "stream_timeout": 5}
    return {"model_name": name, "litellm_params": parameters | _prices(scenario.prices)}


def _prices(card: dict[str, Any]) -> dict[str, Any]:
    """Declare prices as LiteLLM's documentation of custom pricing does: floats per token."""
    prices: dict[str, Any] = {_PRICES[name]: float(card[name]) for name in _PRICES if name in card}
    if "web_search" in card:
        fee = float(card["web_search"])
        sizes = ("low", "medium", "high")
        prices["search_context_cost_per_query"] = {f"search_context_size_{s}": fee for s in sizes}
    for name, price in card.get("above", {}).items():
        if name in _TIERED:
            prices[f"{_PRICES[name]}_above_100k_tokens"] = float(price)
    for tier, factor in card.get("service_tiers", {}).items():
        for name in _TIERED:
            above = Decimal(card["above"][name]) * Decimal(factor)
            prices[f"{_PRICES[name]}_{tier}"] = float(Decimal(card[name]) * Decimal(factor))
            prices[f"{_PRICES[name]}_above_100k_tokens_{tier}"] = float(above)
    return prices
