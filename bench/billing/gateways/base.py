"""What the benchmark needs of a gateway."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.billing.scenarios import Scenario

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


@dataclass(frozen=True)
class Request:
    url: str
    headers: dict[str, str]
    body: dict[str, Any]


class Session(ABC):
    """A running gateway."""

    @abstractmethod
    def request(self, scenario: Scenario) -> Request:
        """Return what a client of this gateway sends."""

    @abstractmethod
    async def books(self, scenarios: list[Scenario]) -> dict[str, Booked]:
        """Return what is booked for each scenario, when the gateway has finished its accounting."""


@dataclass(frozen=True)
class Trial:
    """Many calls of one client. Every answer has the same cost."""

    name: str
    # What the client may spend. None: no budget.
    budget: Decimal | None
    ask: dict[str, Any]
    prices: dict[str, Any]


class TrialSession(ABC):
    """A gateway with one client, which can be killed and started again."""

    @abstractmethod
    def request(self) -> Request: ...

    @abstractmethod
    async def kill(self) -> None:
        """Kill the gateway without a warning, and start it again."""

    @abstractmethod
    async def restart_database(self) -> None: ...

    @abstractmethod
    async def booked(self) -> Decimal:
        """Return what the books say that the client has spent."""


@dataclass(frozen=True)
class Gateway(ABC):
    name: str
    # Features that the gateway does not have, by the name of a trial.
    trials_not_offered: dict[str, str] = field(default_factory=dict)

    def not_offered(self, scenario: Scenario) -> str | None:
        """Return the reason why the gateway cannot be asked for this scenario."""
        return None

    @abstractmethod
    def running(
        self, folder: Path, provider: int, scenarios: list[Scenario]
    ) -> AbstractAsyncContextManager[Session]:
        """Run the gateway with these scenarios. `provider` is the port of the provider."""

    @asynccontextmanager
    async def on_trial(
        self, folder: Path, provider: int, trial: Trial, processes: int
    ) -> AsyncIterator[TrialSession]:
        """Run the gateway for a trial."""
        raise NotImplementedError
        yield


def provider_url(provider: int, name: str) -> str:
    return f"http://127.0.0.1:{provider}/s/{name}"
