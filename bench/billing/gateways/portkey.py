"""Describes Portkey's open-source gateway. It computes no costs and has no budgets, so it never runs."""

import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.billing.gateways.base import Gateway, Session
from bench.billing.scenarios import Scenario
from bench.billing.trials import Trial


def _version() -> str:
    declared = json.loads((Path(__file__).parents[2] / "portkey" / "package.json").read_text())
    return str(declared["dependencies"]["@portkey-ai/gateway"])


@dataclass(frozen=True)
class Portkey(Gateway):
    name: str = "Portkey"
    version: str = _version()
    marks_unknown_costs: ClassVar[bool] = False

    def not_offered(self, scenario: Scenario) -> str | None:
        return "the open-source gateway computes no cost; only Portkey's hosted service does"

    def running(
        self, folder: Path, provider: int, scenarios: list[Scenario], trials: list[Trial]
    ) -> AbstractAsyncContextManager[Session]:
        raise AssertionError("no scenario is offered")
