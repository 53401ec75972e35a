"""Defines the interface that the benchmark needs from a gateway."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from bench.billing.request import Request
from bench.billing.scenarios import Scenario
from bench.billing.trials import Trial

CHAT_PATH = "/v1/chat/completions"
RESPONSES_PATH = "/v1/responses"


@dataclass(frozen=True)
class Booked:
    """The cost that a gateway has booked for a scenario."""

    # None: nothing is booked, or the gateway reports that the cost is unknown.
    usd: Decimal | None
    # False: the gateway itself marks the amount as estimated or unsettled.
    certain: bool = True
    # True: the gateway's record says that the call failed. If the true cost is unknown, this counts as a
    # mark, and so does a booking without an amount: `play.results` then sets `Result.certain` to False.
    failed: bool = False
    record: Any = None


class Session(ABC):
    """A running gateway."""

    @abstractmethod
    def request(self, scenario: Scenario) -> Request:
        """Return the request that a client of this gateway sends."""

    @abstractmethod
    async def books(self, scenarios: list[Scenario], answers: dict[str, str]) -> dict[str, Booked]:
        """Wait until the gateway has finished its accounting, and return the booking of each scenario.
        `answers` contains the clients' answers, because some gateways report costs only there."""


@dataclass(frozen=True)
class Gateway(ABC):
    name: str
    version: str = ""
    # False: the gateway's records have no way to mark an unknown cost. The report then shows "not offered".
    marks_unknown_costs: ClassVar[bool] = True

    def setup(self) -> str:
        """Describe the gateway's setup if it depends on the machine; otherwise return an empty string."""
        return ""

    def not_offered(self, scenario: Scenario) -> str | None:
        """Return the reason why the gateway cannot play this scenario, or None if it can."""
        return None

    def not_run(self, trial: Trial) -> str | None:
        """Return the reason why this trial cannot run with the gateway, or None if it can."""
        return "not offered"

    @abstractmethod
    def running(
        self, folder: Path, provider: int, scenarios: list[Scenario], trials: list[Trial]
    ) -> AbstractAsyncContextManager[Session]:
        """Run the gateway with a model for each scenario and each trial, and with the number of processes
        that the trials need. `provider` is the provider's port."""


def provider_url(provider: int, name: str) -> str:
    return f"http://127.0.0.1:{provider}/s/{name}"


def locked_version(name: str) -> str:
    """Return the version to which the benchmark pins a package."""
    [wanted, *_] = (Path(__file__).parents[2] / "locks" / f"{name}.in").read_text().splitlines()
    return wanted.rpartition("==")[2]
