"""Runs tollkeeper as a benchmarked gateway, as an operator runs it: with workers and a database."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from psycopg.rows import dict_row

from bench.billing.gateways.base import (
    CHAT_PATH,
    RESPONSES_PATH,
    Booked,
    Gateway,
    Session,
    provider_url,
)
from bench.billing.gateways.database import Database
from bench.billing.request import Request
from bench.billing.scenarios import Scenario
from bench.billing.trials import CARD, Client, OnTrial, Trial, TrialBooks, ask, processes_of
from bench.billing.truth import PRICES
from bench.gateway import make_tenants
from tollkeeper.core.access import PROJECT_KEY_PERMISSIONS
from tollkeeper.database.migrations import migrate
from tollkeeper.setup import running_services
from tollkeeper.setup.settings import load_settings

_PICO = Decimal(10) ** 12
# The scenarios that tollkeeper does not book exactly, or whose unknown cost it does not mark, and why.
DEVIATIONS: dict[str, str] = json.loads((Path(__file__).parents[1] / "deviations.json").read_text())
# The holds of a killed gateway become unsettled when its lease has expired.
_BOOKED_WITHIN_S = 180
_NAMES = {
    "cache_read": "input_cache_read",
    "cache_write": "input_cache_write",
    "cache_write_1h": "input_cache_write_1h",
}
# For each native wire: the kind of credential, the path prefix of the backend's address, and the
# request field of the service tier.
_NATIVE = {
    "messages": ("x-api-key", "/v1", "service_tier"),
    "gemini": ("x-goog-api-key", "/v1beta", "serviceTier"),
    "converse": ("bearer", "", "serviceTier.type"),
    "bedrock_messages": ("bearer", "", "service_tier"),
}
# The presets of providers with a billing rule of their own. The other providers need only a protocol.
_PRESETS = {"OpenRouter": "openrouter", "vLLM": "vllm", "Groq": "groq", "Mistral": "mistral"}
_BOOKS = """
    SELECT r.model, r.id::text, r.hold, d.kind, d.estimated, m.reason AS unsettled,
        d.prompt, d.completion, d.input_cache_read, d.input_cache_write, d.input_audio,
        d.output_image, d.web_search, d.image, d.request,
        d.prompt + d.completion + d.input_cache_read + d.image + d.request + d.input_cache_write
            + d.input_audio + d.output_audio + d.output_image + d.web_search AS cost
    FROM reservations r
    LEFT JOIN resolutions d ON d.organization_id = r.organization_id AND d.reservation_id = r.id
    LEFT JOIN unsettled_marks m ON m.organization_id = r.organization_id AND m.reservation_id = r.id
"""


class OurSession(Session, OnTrial):
    def __init__(self, folder: Path, config: Path, conninfo: str, processes: int) -> None:
        self._folder, self._config, self._conninfo = folder, config, conninfo
        self._processes = processes
        self._running = ExitStack()
        self._url = self._key = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Self]:
        [tenant] = await make_tenants(self._config, self._conninfo, 1)
        self._key = tenant.key
        await asyncio.to_thread(self._start)
        try:
            yield self
        finally:
            await asyncio.to_thread(self._running.close)

    def _start(self) -> None:
        serve = serving(self._config, self._folder, self._processes)
        self._url = self._running.enter_context(serve)

    def request(self, scenario: Scenario) -> Request:
        path = CHAT_PATH if scenario.face == "chat" else RESPONSES_PATH
        headers = {"authorization": f"Bearer {self._key}"}
        return Request(self._url + path, headers, {**scenario.ask, "model": scenario.name})

    async def books(self, scenarios: list[Scenario], answers: dict[str, str]) -> dict[str, Booked]:
        rows = await asyncio.to_thread(_resolved_rows, self._conninfo)
        return {
            scenario.name: _booked([row for row in rows if row["model"] == scenario.name])
            for scenario in scenarios
        }

    async def client(self, trial: Trial) -> Client:
        """Create a client whose organization has the trial's budget as credit."""
        credit = None if trial.budget is None else int(trial.budget * _PICO)
        key = await _make_client(self._config, self._conninfo, trial.name, credit)
        headers = {"authorization": f"Bearer {key}"}

        async def books(_billed: int) -> TrialBooks:
            rows = await asyncio.to_thread(_resolved_rows, self._conninfo)
            of_trial = [row for row in rows if row["model"] == trial.name]
            final = [row for row in of_trial if row["kind"] is not None and not row["estimated"]]
            marked = [row for row in of_trial if row["estimated"] or _is_unsettled(row)]
            return TrialBooks(Decimal(sum(row["cost"] for row in final)) / _PICO, len(marked))

        body = {**ask(), "model": trial.name}
        return Client([Request(self._url + CHAT_PATH, headers, body)], books)

    async def kill(self) -> None:
        await asyncio.to_thread(self._running.close)
        await asyncio.to_thread(self._start)

    async def restart_database(self) -> None:
        await asyncio.to_thread(Database(self._folder).restart)


def _booked(rows: list[dict[str, Any]]) -> Booked:
    """Return the sum of one model's rows. A call that never reached a provider has no row."""
    if any(row["kind"] is None for row in rows):
        return Booked(None, certain=False, record=rows)
    usd = sum((Decimal(row["cost"]) / _PICO for row in rows), Decimal(0))
    return Booked(usd, certain=not any(row["estimated"] for row in rows), record=rows)


def _is_unsettled(row: dict[str, Any]) -> bool:
    return row["kind"] is None and row["unsettled"] is not None


def _resolved_rows(conninfo: str) -> list[dict[str, Any]]:
    """Wait until every hold is resolved or unsettled, at most `_BOOKED_WITHIN_S`, and return the ledger's
    rows."""
    until = time.monotonic() + _BOOKED_WITHIN_S
    with psycopg.connect(conninfo, autocommit=True, row_factory=dict_row) as connection:
        while True:
            rows = connection.execute(_BOOKS).fetchall()
            held = [row for row in rows if row["kind"] is None and not _is_unsettled(row)]
            if not held or time.monotonic() > until:
                return rows
            time.sleep(0.1)


@dataclass(frozen=True)
class Ours(Gateway):
    name: str = "tollkeeper"
    version: str = version("tollkeeper")
    # A test's database. If it is None, the benchmark starts a database.
    conninfo: str | None = None

    def not_run(self, trial: Trial) -> str | None:
        return None

    @asynccontextmanager
    async def running(
        self, folder: Path, provider: int, scenarios: list[Scenario], trials: list[Trial]
    ) -> AsyncIterator[OurSession]:
        backends = [backend for scenario in scenarios for backend in _backends(scenario, provider)]
        models = [_model(scenario) for scenario in scenarios]
        for trial in trials:
            name = trial.name
            backends.append({"name": name, "urls": [provider_url(provider, name) + "/v1"]})
            models.append(_trial_model(name))
        with ExitStack() as stack:
            conninfo = self.conninfo
            if conninfo is None:
                conninfo = stack.enter_context(Database(folder)).conninfo
                await asyncio.to_thread(migrate, conninfo)
            config = write_settings(folder, conninfo, backends, models)
            session = OurSession(folder, config, conninfo, processes_of(trials))
            async with session.serve():
                yield session


def _trial_model(name: str) -> dict[str, Any]:
    model = {"id": name, "backend": name, "upstream_model": name, **_prices(PRICES[CARD])}
    return {**model, "context_length": 2000, "max_output_length": 1000}


async def _make_client(config: Path, conninfo: str, name: str, credit: int | None) -> str:
    async with running_services(load_settings(config), conninfo) as services:
        organization = await services.organizations.organization_create(name)
        project = await services.projects.project_create(organization.id, "trial")
        _, key = await services.project_keys.project_key_create_by_operator(
            project.id, "trial", PROJECT_KEY_PERMISSIONS, None
        )
        await services.accounts.credit_grant(organization.id, credit or 10**15, "trial")
        return key


@contextmanager
def serving(config: Path, folder: Path, processes: int) -> Iterator[str]:
    """Run the gateway and yield its address. At the end, the gateway is killed with SIGKILL."""
    with (
        (folder / "tollkeeper.log").open("ab") as log,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tollkeeper", "serve", "--config", str(config)),
                *("--workers", str(processes), "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["public"]
        finally:
            # A killed supervisor cannot stop its workers, and each worker has its own session.
            workers = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for worker in workers:
                worker.kill()
            psutil.wait_procs(workers, timeout=60)


def write_settings(
    folder: Path, conninfo: str, backends: list[dict[str, Any]], models: list[dict[str, Any]]
) -> Path:
    settings = {
        "server": {"port": 0},
        "operator": {"port": 0},
        "console": {"port": 0},
        "database": {"url": _url(conninfo), "data_dir": str(folder)},
        "limits": {"requests_per_minute": 1_000_000, "concurrency": 10_000},
    }
    lines = [f"{name} = {_toml(section)}" for name, section in settings.items()]
    for name, tables in (("backends", backends), ("models", models)):
        for table in tables:
            lines += [f"[[{name}]]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    config = folder / "tollkeeper.toml"
    config.write_text("\n".join(lines) + "\n")
    return config


def _url(conninfo: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(conninfo)
    if conninfo.startswith("postgresql:"):
        return conninfo
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{name}" = {_toml(item)}' for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _backends(scenario: Scenario, provider: int) -> list[dict[str, Any]]:
    """Return the backends of one scenario. A failing backend thus affects no other scenario."""
    names = [scenario.name, *([scenario.fallback] if scenario.fault.falls_back else [])]
    return [_backend(scenario, name, provider) for name in names]


def _backend(scenario: Scenario, name: str, provider: int) -> dict[str, Any]:
    protocol = scenario.exchange.protocol
    credential, path, _ = _NATIVE.get(protocol, ("", "/v1", ""))
    url = provider_url(provider, name) + path
    backend: dict[str, Any] = {"name": name, "protocol": protocol, "urls": [url]}
    if scenario.fault.first_fails is not None:
        # The gateway retries at another replica, so the same server gets a second name.
        backend["urls"] = [url, url.replace("127.0.0.1", "localhost")]
    if scenario.fault.stalls:
        backend["idle_timeout_s"] = 5
    if scenario.provider in _PRESETS:
        preset = _PRESETS[scenario.provider]
        backend |= {"preset": preset, "api_key_env": "", "tokenize_path": "none"}
    if credential:
        backend |= {"tokenize_path": "none", "credential": credential}
    return backend


def _model(scenario: Scenario) -> dict[str, Any]:
    protocol = scenario.exchange.protocol
    native = protocol in _NATIVE
    features = ["tools", "reasoning", "web_search", *(["structured_outputs"] if native else [])]
    model: dict[str, Any] = {
        "id": scenario.name,
        "backend": scenario.name,
        "upstream_model": scenario.name,
        "context_length": 131_072,
        "max_output_length": 8192,
        "supported_sampling_parameters": ["temperature", "top_p", "seed", "stop"],
        "supported_features": features,
        **_prices(scenario.prices),
    }
    if scenario.card == "conditional":
        tier = _NATIVE[protocol][2] if native else "service_tier"
        model |= {
            "supported_features": [],
            "input_modalities": ["text", "audio"],
            "output_modalities": ["text"] if protocol == "responses" else ["text", "image"],
            "token_bounds": {"audio": 1000},
            "options": {"service_tier": tier},
        }
    if scenario.fault.falls_back:
        model["alternatives"] = [
            {"backend": scenario.fallback, "upstream_model": scenario.fallback}
            | _prices(scenario.prices)
        ]
        # The first route gets other prices. A booking at these prices is an error.
        model["pricing"] = {"prompt": "0.000003", "completion": "0.000015"}
    return model


def _prices(card: dict[str, Any]) -> dict[str, Any]:
    prices: dict[str, Any] = {"pricing": _names(card)}
    if "above" in card:
        above = {"above_tokens": card["above_tokens"], "pricing": _names(card["above"])}
        prices |= {"price_tiers": [above], "service_tiers": card["service_tiers"]}
    return prices


def _names(card: dict[str, Any]) -> dict[str, str]:
    return {_NAMES.get(name, name): value for name, value in card.items() if isinstance(value, str)}
