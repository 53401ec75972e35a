"""Plays scenarios and trials through one gateway, and prints every step: the calls, the answers that the
provider really sent, the gateway's records and the arithmetic."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from tests.support.upstream import Peer
from tests.support.upstream_wire import Received

from bench.billing.gateways.base import CHAT_PATH, Booked, Gateway
from bench.billing.play import play_all, results
from bench.billing.result import Result, TrialResult
from bench.billing.scenarios import Scenario, call_cost, load_scenarios
from bench.billing.trials import CARD, OnTrial, Trial, ask, run_trial
from bench.billing.upstream import Provider

# The number of characters that are printed of one text.
_SHOWN = 20_000


@dataclass
class Answered:
    """A call that the provider received, and what it has sent."""

    name: str
    request: Received
    sent: bytearray = field(default_factory=bytearray)
    # How the connection ended, if the answer did not end normally.
    end: str = ""

    @property
    def head(self) -> str:
        return self.sent.partition(b"\r\n\r\n")[0].decode()

    @property
    def body(self) -> bytes:
        """Return the body without the framing of chunks."""
        rest = bytes(self.sent.partition(b"\r\n\r\n")[2])
        if "transfer-encoding: chunked" not in self.head:
            return rest
        whole = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            whole, rest = whole + rest[:length], rest[length + 2 :]
        return whole


class _RecordingPeer(Peer):
    """Sends as the given peer does, and records all bytes."""

    def __init__(self, peer: Peer, answered: Answered) -> None:
        super().__init__(peer.request, peer._reader, peer._writer)
        self._answered = answered

    async def send(self, data: bytes) -> None:
        try:
            await super().send(data)
        except ConnectionError:
            self._answered.end = "the gateway has disconnected"
            raise
        self._answered.sent += data

    def close(self) -> None:
        self._answered.end = (
            "the gateway has disconnected" if self.left else "the provider disconnects"
        )
        super().close()


class RecordingProvider(Provider):
    """Records every call and the bytes of its answer, in the order of arrival."""

    def __init__(self, scenarios: list[Scenario], port: int = 0) -> None:
        super().__init__(scenarios, port)
        self.recorded: list[Answered] = []

    async def _answer(self, name: str, peer: Peer) -> None:
        answered = Answered(name, peer.request)
        self.recorded.append(answered)
        await super()._answer(name, _RecordingPeer(peer, answered))

    def recorded_for(self, *names: str) -> list[Answered]:
        return [answered for answered in self.recorded if answered.name in names]


async def explain_scenarios(gateway: Gateway, scenarios: list[Scenario], folder: Path) -> None:
    """Play scenarios. For each one, print the exchange, the gateway's record and the arithmetic."""
    offered = []
    for scenario in scenarios:
        if (reason := gateway.not_offered(scenario)) is None:
            offered.append(scenario)
        else:
            print(f"{gateway.name} does not offer {scenario.name}: {reason}")
    if not offered:
        return
    async with (
        RecordingProvider(offered) as provider,
        gateway.running(folder, provider.port, offered, []) as session,
    ):
        requests = [session.request(scenario) for scenario in offered]
        answers, books = await play_all(session, provider, offered)
    found = results(offered, provider, answers, books, {})
    for scenario, request, result in zip(offered, requests, found, strict=True):
        name = scenario.name
        print(f"\n=== {name}: {scenario.shows}\nprovider: {scenario.exchange.who}")
        print(f"\nthe client sends to {request.url}\n{shown(json.dumps(request.body))}")
        for number, answered in enumerate(provider.recorded_for(name, scenario.fallback), 1):
            _print_call(number, answered)
        print(f"\nthe client gets\n{shown(answers[name])}")
        _print_record(gateway, books[name])
        print(f"\nthe rule: {scenario.truth.source}\n" + "\n".join(scenario.truth.arithmetic))
        _print_result(result)


def _print_call(number: int, answered: Answered) -> None:
    request = answered.request
    received = request.head.decode("latin-1") + _text(request.body)
    print(f"\ncall {number}: the gateway sends to the provider\n{shown(received)}")
    sent = f"{answered.head}\r\n\r\n{_text(answered.body)}" if answered.sent else "nothing"
    print(f"\ncall {number}: the provider sends\n{shown(sent)}")
    if answered.end:
        print(f"({answered.end})")


def _print_record(gateway: Gateway, booked: Booked) -> None:
    """Print the gateway's record. If it is a list, print one line for each row."""
    rows = booked.record if isinstance(booked.record, list) else [booked.record]
    print(f"\nthe record of {gateway.name}")
    for row in rows:
        print(shown(json.dumps(row, default=str)))


def _print_result(result: Result) -> None:
    marked = "" if result.certain else ", marked as estimated or open"
    print(f"\ntrue {result.true}, booked {result.booked}{marked}, error {result.error}")


async def explain_trial(gateway: Gateway, trial: Trial, folder: Path) -> None:
    """Run a trial. Print the client's calls, the provider's answers, the gateway's records and the sums."""
    if (reason := gateway.not_run(trial)) is not None:
        print(f"{gateway.name} and {trial.name}: {reason}")
        return
    async with (
        RecordingProvider([]) as provider,
        gateway.running(folder, provider.port, [], [trial]) as session,
    ):
        assert isinstance(session, OnTrial), "the gateway says why it is not put on trial"
        with _client_calls() as calls:
            result = await run_trial(session, provider, trial)
        # A gateway finds records by the model's name, which is the trial's name.
        named = replace(load_scenarios()[0], name=trial.name)
        books = await session.books([named], {trial.name: ""})
    budget = "" if trial.budget is None else f", budget {trial.budget} USD"
    processes = "" if trial.processes == 1 else f", {trial.processes} processes"
    print(f"\n=== {trial.name}: {trial.kind}, {trial.calls} calls{budget}{processes}")
    _print_client(trial, calls)
    _print_answers(provider.recorded_for(trial.name))
    _print_record(gateway, books[trial.name])
    _print_sums(result, provider.recorded_for(trial.name))


@contextmanager
def _client_calls() -> Iterator[list[tuple[str, int]]]:
    """Yield a list to which the address and the status of each answered call of a client are appended.
    They are taken from the HTTP client's log."""
    calls: list[tuple[str, int]] = []

    def note(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            _, url, _, status, _ = record.args
            if str(url).endswith(CHAT_PATH):
                calls.append((str(url), int(str(status))))
        return False

    log = logging.getLogger("httpx2")
    before = log.level
    log.addFilter(note)
    log.setLevel(logging.INFO)
    try:
        yield calls
    finally:
        log.removeFilter(note)
        log.setLevel(before)


def _print_client(trial: Trial, calls: list[tuple[str, int]]) -> None:
    urls = ", ".join(dict.fromkeys(url for url, _ in calls))
    print(f"\nthe client sends to {urls}\n{shown(json.dumps({**ask(), 'model': trial.name}))}")
    print(
        "\nthe answers that the client gets, in this order, without the calls that have no answer"
    )
    for status, same in groupby(status for _, status in calls):
        print(f"{len(list(same))} with status {status}")


def _print_answers(recorded: list[Answered]) -> None:
    """Print each call. If its request is the same as the first one, print only the answer."""
    for number, answered in enumerate(recorded, 1):
        if number == 1 or answered.request.body != recorded[0].request.body:
            _print_call(number, answered)
        else:
            status = answered.head.partition("\r\n")[0]
            sent = f"{status} {shown(_text(answered.body))}" if status else "nothing"
            print(f"call {number}: the provider sends {sent}")


def _print_sums(result: TrialResult, recorded: list[Answered]) -> None:
    complete = [answered.body for answered in recorded if b'"usage"' in answered.body]
    for body in complete[:1]:
        usage = json.loads(body)["usage"]
        cost = call_cost(CARD, usage["prompt_tokens"], usage["completion_tokens"])
        print("\nthe cost of a call\n" + "\n".join(cost.arithmetic))
    print(f"\n{result.answered} answers, {result.marked} marked calls")
    print(f"billed {result.true}, booked {result.booked}, lost {result.lost}")
    if result.budget is not None:
        print(f"budget {result.budget}, overspent {result.overspent}")


def _text(data: bytes) -> str:
    """Decode text. The control characters of binary streams become spaces."""
    said = data.decode(errors="replace")
    return "".join(one if one.isprintable() or one in "\r\n\t" else " " for one in said)


def shown(text: str, limit: int = _SHOWN) -> str:
    """Return the beginning of a text, and the number of characters that are missing, if any."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} of {len(text)} characters are not shown]"
