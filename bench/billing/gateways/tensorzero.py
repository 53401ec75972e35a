"""Runs TensorZero's gateway as a benchmarked gateway.

TensorZero computes a cost if a provider's settings name the usage fields of the answer and the price of
one unit of each field. It reports the cost in the answer.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.journeys.clients.environments import python_environment

from bench.billing.gateways.base import (
    Booked,
    Gateway,
    Session,
    locked_version,
    provider_url,
)
from bench.billing.gateways.processes import running_program
from bench.billing.request import Request
from bench.billing.scenarios import Scenario
from bench.billing.trials import Trial
from bench.billing.truth import rule_of

_BENCH = Path(__file__).parents[2]
_PATH = "/openai/v1/chat/completions"
_TYPES = {"chat": "openai", "messages": "anthropic"}
_COST = '"tensorzero_cost":'
# Counts that another count includes. Their declared price is the difference to that count's price.
_INSIDE = {
    "cache_read": "prompt",
    "cache_write": "prompt",
    "input_audio": "prompt",
    "output_image": "completion",
}


class TensorZeroSession(Session):
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}{_PATH}"

    def request(self, scenario: Scenario) -> Request:
        model = f"tensorzero::model_name::{scenario.name}"
        return Request(self._url, {}, {**scenario.ask, "model": model})

    async def books(self, scenarios: list[Scenario], answers: dict[str, str]) -> dict[str, Booked]:
        return {scenario.name: _booked(answers[scenario.name]) for scenario in scenarios}


def _booked(answer: str) -> Booked:
    """Return the cost that the answer reports. If it reports none, nothing is booked."""
    _, found, rest = answer.rpartition(_COST)
    if not found:
        return Booked(None, record=answer[-500:])
    number, _ = json.JSONDecoder(parse_float=Decimal).raw_decode(rest)
    return Booked(None if number is None else Decimal(number), record=_COST + rest[:200])


@dataclass(frozen=True)
class TensorZero(Gateway):
    name: str = "TensorZero"
    version: str = locked_version("tensorzero")

    def not_offered(self, scenario: Scenario) -> str | None:
        if scenario.face != "chat":
            return "it has no Responses endpoint"
        if scenario.exchange.protocol not in _TYPES:
            return "its settings have no address for this provider's own protocol"
        if scenario.card == "conditional" and _depends_on_the_call(scenario):
            return "it has no prices by service tier or by the length of the prompt"
        if scenario.fault.client_leaves:
            return "without a database it reports the cost only to the client, which has left"
        return None

    def not_run(self, trial: Trial) -> str | None:
        return "not run: needs a database"

    @asynccontextmanager
    async def running(
        self, folder: Path, provider: int, scenarios: list[Scenario], trials: list[Trial]
    ) -> AsyncIterator[TensorZeroSession]:
        lines = ["[gateway]", "observability.enabled = false"]
        for scenario in scenarios:
            lines += _model(scenario, provider)
        (folder / "tensorzero.toml").write_text("\n".join(lines) + "\n")
        port_file = folder / "port"
        command: list[str | Path] = [
            *(python_environment("tensorzero", _BENCH / "locks"), _BENCH / "tensorzero_server.py"),
            *(folder / "tensorzero.toml", port_file),
        ]
        async with running_program(command, folder, {}, port_file):
            yield TensorZeroSession(int(port_file.read_text()))


def _depends_on_the_call(scenario: Scenario) -> bool:
    """Return whether the price depends on the call's service tier or prompt length."""
    return any(word in scenario.name for word in ("flex", "priority", "tier", "long"))


def _model(scenario: Scenario, provider: int) -> list[str]:
    name = scenario.name
    # TensorZero uses the same list of providers for retries and for fallbacks.
    addresses = {"first": name}
    if scenario.fault.falls_back:
        addresses["second"] = scenario.fallback
    elif scenario.fault.first_fails is not None:
        addresses["second"] = name
    routing = ", ".join(f'"{route}"' for route in addresses)
    lines = [f'[models."{name}"]', f"routing = [{routing}]"]
    if scenario.fault.stalls:
        lines.append("timeouts = { streaming = { ttft_ms = 5000 } }")
    for route, address in addresses.items():
        kind = _TYPES[scenario.exchange.protocol]
        base = provider_url(provider, address) + "/v1/"
        lines += [
            f'[models."{name}".providers.{route}]',
            f'type = "{kind}"',
            f'model_name = "{address}"',
            f'api_base = "{base}{"messages" if kind == "anthropic" else ""}"',
            'api_key_location = "none"' if kind == "openai" else 'api_key_location = "env::HOME"',
            f"cost = [{', '.join(_costs(scenario))}]",
        ]
    return lines


def _costs(scenario: Scenario) -> list[str]:
    """Return TensorZero's price settings as its guide says: a JSON pointer into the answer and a price."""
    rule = rule_of(scenario.exchange.who, scenario.exchange.protocol)
    said = json.dumps(scenario.exchange.answer)
    card = scenario.prices
    beside = rule.get("cache") == "beside"
    costs: list[str] = []

    def declare(name: str, price: Decimal, unit: str = "cost_per_million") -> None:
        paths = [path for path in rule.get(name, ()) if "[" not in path]
        # Some rules name several fields. An operator declares the field that the provider uses.
        used = [path for path in paths if f'"{path.split(".")[-1]}"' in said]
        costs.extend(f"{{ {_pointers(path, scenario)}, {unit} = {price} }}" for path in used[:1])

    million = Decimal(10) ** 6
    declare("input", Decimal(card["prompt"]) * million)
    declare("output", Decimal(card["completion"]) * million)
    declare("reasoning_beside", Decimal(card["completion"]) * million)
    for name, base in _INSIDE.items():
        if name in card:
            outside = beside and name.startswith("cache")
            price = Decimal(card[name]) - (0 if outside else Decimal(card[base]))
            declare(name, price * million)
    if "cache_write_1h" in card:
        more = Decimal(card["cache_write_1h"]) - Decimal(card["cache_write"])
        declare("cache_write_1h", more * million)
    if "web_search" in card:
        declare("searches", Decimal(card["web_search"]), "cost_per_unit")
    return costs


def _pointers(path: str, scenario: Scenario) -> str:
    place = path.replace(".", "/")
    if scenario.exchange.protocol != "messages":
        return f'pointer = "{_usage_place(scenario)}/{place}"'
    # A stream reports the prompt in its first event and the output in its last event. Some streams
    # repeat the prompt in the last event, including the tokens that a search has added.
    reports = [line for line in scenario.exchange.answer.get("lines", ()) if "usage" in line]
    last = reports[-1]["usage"] if reports and isinstance(reports[-1], dict) else {}
    first = (
        path.split(".", maxsplit=1)[0] not in last
        and "output" not in path
        and "server_tool" not in path
    )
    streaming = f"/message/usage/{place}" if first else f"/usage/{place}"
    return f'pointer_nonstreaming = "/usage/{place}", pointer_streaming = "{streaming}"'


def _usage_place(scenario: Scenario) -> str:
    """Return the place of the usage report in this provider's answer, which operators know from its docs."""
    lines = scenario.exchange.answer.get("lines", [scenario.exchange.answer.get("body")])
    for event in lines:
        if not isinstance(event, dict) or event.get("usage"):
            continue
        if (event.get("x_groq") or {}).get("usage") and not _has_usage(lines):
            return "/x_groq/usage"
        if any(choice.get("usage") for choice in event.get("choices", ())):
            return "/choices/0/usage"
    return "/usage"


def _has_usage(events: list[Any]) -> bool:
    return any(isinstance(event, dict) and event.get("usage") for event in events)
