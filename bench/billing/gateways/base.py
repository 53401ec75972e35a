"""What the benchmark needs of a gateway."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.billing.request import Request
from bench.billing.scenarios import Scenario
from bench.billing.trials import Trial

CHAT_PATH = "/v1/chat/completions"
RESPONSES_PATH = "/v1/responses"


@dataclass(frozen=True)
class Booked:
    """What a gateway's books say about a scenario."""

    # None: nothing is booked, or the gateway says that the cost is not known.
    usd: Decimal | None
    # False: the gateway itself marks the amount as an estimate, or as open.
    certain: bool = True
    record: Any = None


class Session(ABC):
    """A running gateway."""

    @abstractmethod
    def request(self, scenario: Scenario) -> Request:
        """Return what a client of this gateway sends."""

    @abstractmethod
    async def books(self, scenarios: list[Scenario], answers: dict[str, str]) -> dict[str, Booked]:
        """Return what is booked for each scenario, when the gateway has finished its accounting.
        `answers` has what the clients got, for gateways that only report costs there."""


@dataclass(frozen=True)
class Gateway(ABC):
    name: str
    version: str = ""

    def setup(self) -> str:
        """Say how the gateway was set up here, if that depends on the machine."""
        return ""

    def not_offered(self, scenario: Scenario) -> str | None:
        """Return the reason why the gateway cannot be asked for this scenario."""
        return None

    def not_run(self, trial: Trial) -> str | None:
        """Return the reason why the gateway cannot be put on this trial."""
        return "not offered"

    @abstractmethod
    def running(
        self, folder: Path, provider: int, scenarios: list[Scenario], trials: list[Trial]
    ) -> AbstractAsyncContextManager[Session]:
        """Run the gateway with a model for each scenario and each trial, with as many processes as
        the trials want. `provider` is the port of the provider."""


def provider_url(provider: int, name: str) -> str:
    return f"http://127.0.0.1:{provider}/s/{name}"


def locked_version(name: str) -> str:
    """The version of a package that the benchmark pins."""
    [wanted, *_] = (Path(__file__).parents[2] / "locks" / f"{name}.in").read_text().splitlines()
    return wanted.rpartition("==")[2]
