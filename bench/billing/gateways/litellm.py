"""Runs LiteLLM's proxy as a benchmarked gateway, with its database, virtual keys and budgets."""

import asyncio
import json
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import httpx2
import psycopg
from psycopg.rows import dict_row

from bench.billing.gateways.base import (
    CHAT_PATH,
    RESPONSES_PATH,
    Booked,
    Gateway,
    Session,
    locked_version,
    provider_url,
)
from bench.billing.gateways.database import Database
from bench.billing.gateways.litellm_database import Installed, install_litellm, make_tables
from bench.billing.gateways.processes import NotStarted, running_program
from bench.billing.request import Request
from bench.billing.scenarios import Scenario
from bench.billing.trials import CARD, Client, OnTrial, Trial, TrialBooks, ask, processes_of
from bench.billing.truth import PRICES
from bench.ports import free_port

# LiteLLM writes its log every 10 to 15 s. If the log has not grown for this time, it is complete.
_QUIET_S = 40
_WRITTEN_WITHIN_S = 300
_KEY_WITHIN_S = 60
# The status that the spend log has for a call that failed.
_FAILURE = "failure"
_LOG = """
    SELECT request_id, call_type, status, model_group, model, spend, prompt_tokens, completion_tokens,
        metadata -> 'usage_object' AS usage, metadata -> 'cost_breakdown' AS cost_breakdown,
        metadata -> 'error_information' ->> 'error_message' AS error
    FROM "LiteLLM_SpendLogs"
"""
# For each beginning of an exchange's `who`: LiteLLM's provider name, and the path of `api_base`.
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
# LiteLLM calls the Responses endpoint of these providers by their names. The others are `openai`.
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


class LiteLLMSession(Session, OnTrial):
    """Runs proxies that share a database. The spend log books a scenario under its model's name."""

    def __init__(self, folder: Path, installed: Installed, database: Database) -> None:
        self._folder, self._installed, self._database = folder, installed, database
        self._master_key = f"sk-{secrets.token_hex(24)}"
        self._salt = secrets.token_hex(24)
        self._running = AsyncExitStack()
        self._urls: list[str] = []
        self._key = ""

    def configure(self, config: dict[str, Any]) -> None:
        """Write the settings for the next start of the proxy. JSON is also valid YAML."""
        (self._folder / "config.yaml").write_text(json.dumps(config))

    @asynccontextmanager
    async def serve(self, processes: int) -> AsyncIterator[Self]:
        async with self._running:
            await self._start(processes)
            self._key = await self._make_key({})
            yield self

    async def _start(self, processes: int) -> None:
        programs = [self._program(self._folder / str(number)) for number in range(processes)]
        started = [self._running.enter_async_context(program) for program in programs]
        self._urls = list(await asyncio.gather(*started))

    @asynccontextmanager
    async def _program(self, folder: Path) -> AsyncIterator[str]:
        folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a local folder
        port = free_port()
        command: list[str | Path] = [
            *(self._installed.program, "--config", self._folder / "config.yaml"),
            *("--num_workers", "1", "--host", "127.0.0.1", "--port", str(port)),
        ]
        environment = {
            **self._installed.environment,
            "HOME": str(folder),
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_MASTER_KEY": self._master_key,
            "LITELLM_SALT_KEY": self._salt,
            # Use the price list of the package. Otherwise LiteLLM would download the newest list.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DATABASE_URL": self._database_url(),
            # The tables already exist, and a schema comparison would download an engine.
            "DISABLE_SCHEMA_UPDATE": "true",
            "LITELLM_PRISMA_COMMAND_TIMEOUT": "0.1",
            "AWS_REGION": "us-east-1",
        }
        url = f"http://127.0.0.1:{port}"
        ready = f"{url}/health/liveliness"
        async with running_program(command, folder, environment, ready, signal.SIGKILL):
            yield url

    def _database_url(self) -> str:
        parts = psycopg.conninfo.conninfo_to_dict(self._database.conninfo)
        return f"postgresql://{parts['user']}@localhost/{parts['dbname']}?host={parts['host']}"

    async def _make_key(self, wishes: dict[str, Any]) -> str:
        headers = {"authorization": f"Bearer {self._master_key}"}
        async with httpx2.AsyncClient(timeout=_KEY_WITHIN_S, verify=False) as http:
            made = await http.post(f"{self._urls[0]}/key/generate", headers=headers, json=wishes)
            if made.status_code != 200:
                raise NotStarted(f"it makes no key: {made.text[:200]}")
            return str(made.json()["key"])

    def _request(self, number: int, path: str, key: str, body: dict[str, Any]) -> Request:
        return Request(self._urls[number] + path, {"authorization": f"Bearer {key}"}, body)

    def request(self, scenario: Scenario) -> Request:
        path = CHAT_PATH if scenario.face == "chat" else RESPONSES_PATH
        return self._request(0, path, self._key, {**scenario.ask, "model": scenario.name})

    async def books(self, scenarios: list[Scenario], answers: dict[str, str]) -> dict[str, Booked]:
        rows = await asyncio.to_thread(self._rows)
        return {
            scenario.name: _booked([row for row in rows if _name(row) == scenario.name])
            for scenario in scenarios
        }

    def _rows(self, name: str = "", wanted: int | None = None) -> list[dict[str, Any]]:
        """Return the spend log as soon as it has the wanted number of costs under this name, or has not
        grown for `_QUIET_S` seconds. Wait at most `_WRITTEN_WITHIN_S` seconds."""
        until = time.monotonic() + _WRITTEN_WITHIN_S
        with psycopg.connect(
            self._database.conninfo, autocommit=True, row_factory=dict_row
        ) as connection:
            rows, quiet_since = connection.execute(_LOG).fetchall(), time.monotonic()
            while time.monotonic() < min(until, quiet_since + _QUIET_S):
                time.sleep(1)
                found = connection.execute(_LOG).fetchall()
                if wanted == sum(_name(row) == name and row["spend"] > 0 for row in found):
                    return found
                if len(found) != len(rows):
                    rows, quiet_since = found, time.monotonic()
            return rows

    async def client(self, trial: Trial) -> Client:
        """Create a client whose virtual key has the trial's budget."""
        wishes = {} if trial.budget is None else {"max_budget": float(trial.budget)}
        key = await self._make_key(wishes)
        body = {**ask(), "model": trial.name}

        async def books(billed: int) -> TrialBooks:
            rows = await asyncio.to_thread(self._rows, trial.name, billed)
            of_trial = [row for row in rows if _name(row) == trial.name]
            final = [row for row in of_trial if row["status"] != _FAILURE]
            # The log also has the calls that a budget refused. The provider did not bill them.
            unbooked = max(0, billed - len(final))
            marked = min(unbooked, len(of_trial) - len(final))
            return TrialBooks(sum((_spend(row) for row in final), Decimal(0)), marked)

        numbers = range(len(self._urls))
        return Client([self._request(number, CHAT_PATH, key, body) for number in numbers], books)

    async def kill(self) -> None:
        await self._running.aclose()
        await self._start(len(self._urls))

    async def restart_database(self) -> None:
        await asyncio.to_thread(self._database.restart)


def _name(row: dict[str, Any]) -> str:
    """Return the name of a row's scenario or trial."""
    name = str(row["model_group"] or row["model"]).split("/")[-1]
    return name.removesuffix("--second")


def _booked(rows: list[dict[str, Any]]) -> Booked:
    usd = sum((_spend(row) for row in rows), Decimal(0))
    return Booked(usd, failed=any(row["status"] == _FAILURE for row in rows), record=rows)


def _spend(row: dict[str, Any]) -> Decimal:
    return Decimal(str(row["spend"]))


@dataclass(frozen=True)
class LiteLLM(Gateway):
    name: str = "LiteLLM"
    version: str = locked_version("litellm")

    def setup(self) -> str:
        return install_litellm().engine

    def not_run(self, trial: Trial) -> str | None:
        return "not run: its processes share budgets through Redis" if trial.processes > 1 else None

    @asynccontextmanager
    async def running(
        self, folder: Path, provider: int, scenarios: list[Scenario], trials: list[Trial]
    ) -> AsyncIterator[LiteLLMSession]:
        installed = await asyncio.to_thread(install_litellm)
        models = [model for scenario in scenarios for model in _models(scenario, provider)]
        on_trial = [_trial_model(trial, provider) for trial in trials]
        fallbacks = [
            {scenario.name: [scenario.fallback]}
            for scenario in scenarios
            if scenario.fault.falls_back
        ]
        settings: dict[str, Any] = {"drop_params": True, "request_timeout": 60}
        config = {
            "model_list": models + on_trial,
            "litellm_settings": settings | {"fallbacks": fallbacks},
            # Retry a failed call once, without a delay.
            "router_settings": {"num_retries": 1, "retry_after": 0, "disable_cooldowns": True},
        }
        with Database(folder) as database:
            await asyncio.to_thread(make_tables, database.conninfo, installed.migrations)
            session = LiteLLMSession(folder, installed, database)
            session.configure(config)
            async with session.serve(processes_of(trials)):
                # Only trials restart the proxy, and a proxy with few models starts sooner.
                session.configure({"model_list": on_trial, "litellm_settings": settings})
                yield session


def _trial_model(trial: Trial, provider: int) -> dict[str, Any]:
    url = provider_url(provider, trial.name) + "/v1"
    parameters = {"model": f"openai/{trial.name}", "api_base": url, "api_key": "unused"}
    return _entry(trial.name, parameters | _prices(PRICES[CARD]))


def _models(scenario: Scenario, provider: int) -> list[dict[str, Any]]:
    models = [_model(scenario, scenario.name, provider)]
    if scenario.fault.falls_back:
        models.append(_model(scenario, scenario.fallback, provider))
        # The first model gets other prices. A booking at these prices is an error.
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
    return _entry(name, parameters | _prices(scenario.prices))


def _entry(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the model list. Its id is fixed, because LiteLLM would otherwise derive an id that
    differs between runs, and reads the size of a Together model from the id if it has a digit before a «b»."""
    return {
        "model_name": name,
        "litellm_params": parameters,
        "model_info": {"id": f"{name}-deployment"},
    }


def _prices(card: dict[str, Any]) -> dict[str, Any]:
    """Return LiteLLM's price settings, as its documentation of custom pricing says: floats per token."""
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
