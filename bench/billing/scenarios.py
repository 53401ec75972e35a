"""Loads the scenarios: recorded exchanges, and recorded exchanges with a fault."""

import json
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.journeys.exchanges.exchange import PRICED, RECORDED, Exchange, load

from bench.billing.truth import PRICES, Truth, bill, cite, failed, price, provider_of, rule_of

_HERE = Path(__file__).parent
LEFT_OUT: dict[str, str] = json.loads((_HERE / "left_out.json").read_text())
_FAULTS = json.loads((_HERE / "faults.json").read_text())
# The sources that say what a fault does to the bill.
FAULT_SOURCES: dict[str, dict[str, Any]] = _FAULTS["sources"]
# An exchange whose `who` contains one of these comes from a proxy or imitation, not a provider.
_INVENTED = ("proxy", "imitation", "A server behind")
_INVENTED_REASON = (
    "it is the shape of a proxy, or of a server that imitates a provider's API; neither has a published "
    "price rule"
)
_SYNTHETIC_REASON = "no provider's documentation shows this shape; we made it up"


@dataclass(frozen=True)
class Fault:
    """The fault in a scenario, if any."""

    # The upstream closes the connection after this number of events.
    cut_after: int | None = None
    # Instead of closing the connection, the upstream sends nothing more.
    stalls: bool = False
    client_leaves: bool = False
    # The status of the upstream's first answer. The second call succeeds.
    first_fails: int | None = None
    # The first model always answers 503. The exchange is the answer of the second model.
    falls_back: bool = False
    pause_s: float = 0
    # The size of the pieces in which a stream is sent.
    piece_bytes: int | None = None
    # How long the provider works on after the client has disconnected, in seconds.
    work_s: float = 1.0
    # A proxy of this kind answers with this status and an HTML page.
    proxy: str | None = None
    proxy_status: int | None = None
    # The upstream accepts the request, and closes the connection without an answer.
    no_answer: bool = False


@dataclass(frozen=True)
class Scenario:
    name: str
    kind: str
    shows: str
    exchange: Exchange
    # `chat` or `responses`, and the body that the client sends there.
    face: str
    ask: dict[str, Any]
    # The name of a price card in `prices.json`.
    card: str
    truth: Truth
    fault: Fault = field(default_factory=Fault)

    @property
    def prices(self) -> dict[str, Any]:
        return PRICES[self.card]

    @property
    def provider(self) -> str:
        return provider_of(self.exchange.who)

    @property
    def fallback(self) -> str:
        """Return the name of the second model of a scenario that falls back."""
        return f"{self.name}--second"


def load_scenarios() -> list[Scenario]:
    return [*_exchanges(), *_faults()]


def left_out() -> dict[str, str]:
    """Return every exchange that is not a scenario, with the reason."""
    reasons = {}
    for folder in (RECORDED, PRICED):
        for path in sorted(folder.glob("*.json")):
            if (reason := _reason_to_leave_out(path)) is not None:
                reasons[path.stem] = reason
    return reasons


def _reason_to_leave_out(path: Path) -> str | None:
    written = json.loads(path.read_text())
    if path.stem in LEFT_OUT:
        return LEFT_OUT[path.stem]
    if any(word in written["who"] for word in _INVENTED):
        return _INVENTED_REASON
    return _SYNTHETIC_REASON if written["source"] == "synthetic" else None


def _exchanges() -> list[Scenario]:
    found = []
    for folder, card in ((RECORDED, "standard"), (PRICED, "conditional")):
        for path in sorted(folder.glob("*.json")):
            if _reason_to_leave_out(path) is None:
                exchange = load(path.stem, folder)
                shows = json.loads(path.read_text())["shows"]
                found.append(_scenario(path.stem, "exchange", shows, exchange, card))
    return found


def _scenario(
    name: str, kind: str, shows: str, exchange: Exchange, card: str, fault: Fault | None = None
) -> Scenario:
    face = "chat" if "chat" in exchange.asks else "responses"
    fault = fault or Fault()
    truth = _truth(exchange, card, fault)
    if exchange.who.startswith(("OpenRouter", "xAI")) and truth.usd is not None:
        exchange = replace(exchange, answer=_with_stated_cost(exchange.answer, truth.usd))
    exchange = replace(exchange, answer=_with_own_id(exchange.answer, name))
    return Scenario(
        *(name, kind, shows, exchange, face, exchange.asks[face], card, truth), fault=fault
    )


def _truth(exchange: Exchange, card: str, fault: Fault) -> Truth:
    if fault.proxy_status is not None:
        return failed(fault.proxy_status)
    rule, answer = rule_of(exchange.who, exchange.protocol), exchange.answer
    if fault.no_answer:
        return Truth(None, ["without an answer it is unknown whether the model ran"], cite(rule))
    if fault.cut_after is not None:
        answer = {"lines": cut(answer["lines"], fault.cut_after)}
    return bill(rule, answer, exchange.request, card, cut=fault.cut_after is not None)


def _with_own_id(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """Give the answer a unique id, as providers do, because a gateway may book by the id. The recorded
    exchanges share ids."""

    def own(event: Any) -> Any:
        if not isinstance(event, dict):
            return event
        ids = {key: f"{event[key]}-{name}" for key in ("id", "responseId") if event.get(key)}
        inner = {key: own(event[key]) for key in ("message", "response") if key in event}
        return {**event, **ids, **inner}

    if "lines" in answer:
        return {**answer, "lines": [own(line) for line in answer["lines"]]}
    return {**answer, "body": own(answer["body"])} if "body" in answer else answer


def _with_stated_cost(value: Any, usd: Decimal) -> Any:
    """Replace the cost that an answer of OpenRouter or xAI states by the cost at the benchmark's prices,
    because a gateway may book the stated cost."""
    if isinstance(value, list):
        return [_with_stated_cost(item, usd) for item in value]
    if not isinstance(value, dict):
        return value
    stated = {"cost": float(usd), "cost_in_usd_ticks": int(usd * 10**10)}
    return {
        name: stated[name] if name in stated and item is not None else _with_stated_cost(item, usd)
        for name, item in value.items()
    }


def cut(lines: list[Any], events: int) -> list[Any]:
    """Return the lines of the first events. A blank line ends an event."""
    ends = [position for position, line in enumerate(lines) if line == ""]
    return lines[: ends[events - 1] + 1]


def _faults() -> list[Scenario]:
    return [_fault(dict(written)) for written in _FAULTS["faults"]]


def _fault(written: dict[str, Any]) -> Scenario:
    name, base = written.pop("name"), written.pop("exchange")
    source, last = FAULT_SOURCES[written.pop("source")], written.pop("ends_with", None)
    shows = "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in written.items())
    exchange = load(base)
    if last is not None:
        lines = [*cut(exchange.answer["lines"], written.pop("cut_after")), last, ""]
        exchange = replace(exchange, answer={**exchange.answer, "lines": lines})
        shows = "after some output, the stream ends with an error"
    fault = Fault(**written)
    card = "fallback" if fault.falls_back else "standard"
    found = _scenario(name, "fault", f"{base}, {shows}", exchange, card, fault)
    truth = replace(found.truth, source=f"{found.truth.source}; {cite(source)}")
    return replace(found, truth=truth)


def call_cost(card: str, prompt: int, completion: int) -> Truth:
    """Return the cost of one call of a trial. The upstream reports exactly these token counts."""
    counts = dict.fromkeys(("cache_read", "cache_write", "cache_write_1h", "input_audio"), 0)
    counts |= {"prompt": prompt, "completion": completion}
    usd, lines = price(counts, PRICES[card], None)
    return Truth(usd, lines, "", counts)
