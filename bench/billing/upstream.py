"""Plays the provider: answers each call with the bytes of the scenario that the call names.

The path of a call names its scenario: `/s/NAME/…`. Each gateway gets this path as the provider's
address, so no gateway has to send the scenario's name in another way.
"""

import asyncio
import contextlib
import itertools
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from tests.journeys.exchanges.exchange import _line, frames_of
from tests.support.stream_server import StreamServer
from tests.support.upstream import JSON_TYPE, SSE_TYPE, Peer
from tests.support.upstream_converse import FRAMES_TYPE
from tests.support.upstream_wire import Received

from bench.billing.scenarios import Scenario

_SCENARIO = re.compile(r"^/s/([^/]+)")
# How long the provider keeps a connection on which it does not answer.
_SILENT_S = 15
# The HTML pages of proxies.
_PAGES = {
    "nginx": """<html>
<head><title>{status} {title}</title></head>
<body>
<center><h1>{status} {title}</h1></center>
<hr><center>nginx</center>
</body>
</html>
""",
    "Cloudflare": """<!DOCTYPE html>
<html lang="en-US">
<head><title>api.example.com | {status}: {title}</title></head>
<body><div id="cf-wrapper"><h1>{title} <span>Error code {status}</span></h1></div></body>
</html>
""",
}
_TITLES = {502: "Bad Gateway", 504: "Gateway Time-out", 524: "A timeout occurred"}
_HTML_TYPE = "text/html; charset=UTF-8"
# The longest wait for a client to disconnect, and for a gateway to give up a stalled stream.
_PATIENCE_S = 60


@dataclass(frozen=True)
class TrialAnswer:
    """The answer to each call of a trial."""

    body: dict[str, Any]
    # The time without new calls after which the answer is sent.
    quiet_s: float = 0
    # The number of calls that are answered. None: all. A further call gets no answer, or a first chunk.
    answers: int | None = None


class Provider(StreamServer):
    """Answers calls. `calls` has the POST requests of each scenario, `answered` counts complete answers."""

    def __init__(self, scenarios: list[Scenario], port: int = 0) -> None:
        super().__init__(self._answer_calls, hosts=("127.0.0.1",), port=port)
        self._scenarios = {scenario.name: scenario for scenario in scenarios}
        self.calls: dict[str, list[Received]] = defaultdict(list)
        self.answered: Counter[str] = Counter()
        # Set when the client of a scenario has disconnected.
        self.left: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.trials: dict[str, TrialAnswer] = {}
        self._numbers = itertools.count(1)
        # The number of calls of each trial that get an answer.
        self._begun: Counter[str] = Counter()
        self._arrival = asyncio.Event()

    async def _answer_calls(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while not writer.is_closing():
            request = await _read_request(reader)
            found = _SCENARIO.match(request.path)
            name = found.group(1) if found else ""
            # Some gateways also request the list of models with GET.
            if request.head.startswith(b"POST"):
                self.calls[name].append(request)
                self._arrival.set()
            peer = Peer(request, reader, writer)
            try:
                await self._answer(name, peer)
            except (ConnectionError, TimeoutError):
                return

    async def until_called(self, name: str, times: int) -> None:
        """Wait until this number of calls has arrived."""
        while len(self.calls[name]) < times:
            self._arrival.clear()
            await self._arrival.wait()

    async def _answer(self, name: str, peer: Peer) -> None:
        if name in self.trials:
            await self._answer_trial(name, peer)
            return
        scenario = self._scenarios.get(name.removesuffix("--second"))
        if scenario is None or not _is_inference(peer.request.path):
            await _send_json(peer, 404, {"error": {"message": "no such scenario", "type": "x"}})
            return
        fault = scenario.fault
        first = len(self.calls[name]) == 1
        if fault.falls_back and name == scenario.name:
            await _send_json(peer, 503, _ERROR)
        elif fault.first_fails is not None and first:
            await _send_json(peer, fault.first_fails, _ERROR)
        elif fault.proxy is not None and fault.proxy_status is not None:
            await _send_page(peer, fault.proxy, fault.proxy_status)
        elif fault.no_answer:
            await _never_answer(peer)
        else:
            await _play(scenario, peer, self.left[scenario.name])
            self.answered[name] += 1

    async def _answer_trial(self, name: str, peer: Peer) -> None:
        """Send an answer with a unique id when no other call of the trial has arrived for some time."""
        trial = self.trials[name]
        if trial.answers is not None and self._begun[name] >= trial.answers:
            await _begin_only(peer)
            return
        self._begun[name] += 1
        arrived = -1
        while arrived != len(self.calls[name]):
            arrived = len(self.calls[name])
            await asyncio.sleep(trial.quiet_s)
        await _send_json(peer, 200, {**trial.body, "id": f"chatcmpl-{name}-{next(self._numbers)}"})
        self.answered[name] += 1


_ERROR = {"error": {"message": "The server is overloaded.", "type": "server_error", "code": None}}


def _is_inference(path: str) -> bool:
    return "count" not in path and "tokenize" not in path


async def _play(scenario: Scenario, peer: Peer, left: asyncio.Event) -> None:
    answer, fault = scenario.exchange.answer, scenario.fault
    if not scenario.exchange.streamed:
        if fault.client_leaves:
            await _work_on(left, fault.work_s)
        body = answer.get("before_body", "").encode() + json.dumps(answer["body"]).encode()
        await peer.send_head(answer.get("status", 200), JSON_TYPE, length=len(body))
        await peer.send(body)
        return
    pieces = _pieces(scenario)
    binary = "frames" in answer
    await peer.send_head(200, FRAMES_TYPE if binary else SSE_TYPE)
    # A client that disconnects does so after the first half of the pieces.
    half = max(1, len(pieces) // 2)
    for number, piece in enumerate(pieces):
        if fault.client_leaves and number == half:
            await _work_on(left, fault.work_s)
        if fault.pause_s:
            await asyncio.sleep(fault.pause_s)
        await peer.send_chunk(piece)
    if fault.cut_after is None:
        await peer.end_chunks()
        return
    if fault.stalls:
        async with asyncio.timeout(_PATIENCE_S):
            await peer.until_left()
    peer.close()


async def _work_on(left: asyncio.Event, work_s: float) -> None:
    """Wait until the client has disconnected, and then as long as the provider works on."""
    async with asyncio.timeout(_PATIENCE_S):
        await left.wait()
    await asyncio.sleep(work_s)


async def _never_answer(peer: Peer) -> None:
    """Close the connection without an answer when the gateway has left, at the latest after `_SILENT_S`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SILENT_S):
            await peer.until_left()
    peer.close()


async def _begin_only(peer: Peer) -> None:
    """Send the first chunk of a stream, or nothing of a JSON answer, and wait until the gateway has left."""
    streamed = False
    with contextlib.suppress(ValueError):  # The kill may have cut the body of the request.
        streamed = json.loads(peer.request.body).get("stream")
    if streamed:
        await peer.send_head(200, SSE_TYPE)
        await peer.send_chunk((_line(_FIRST_CHUNK) + "\n\n").encode())
    async with asyncio.timeout(_PATIENCE_S):
        await peer.until_left()
    peer.close()


_FIRST_CHUNK = {
    "id": "chatcmpl-begun",
    "object": "chat.completion.chunk",
    "created": 1790000000,
    "model": "trial",
    "choices": [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "The tenant"},
            "finish_reason": None,
        }
    ],
}


def _pieces(scenario: Scenario) -> list[bytes]:
    """Return the bytes of a stream: one piece for each event, or pieces of the fault's size."""
    answer, fault = scenario.exchange.answer, scenario.fault
    if "frames" in answer:
        return frames_of(scenario.exchange)
    end = answer.get("line_end", "\n")
    lines = [_line(line) + end for line in answer["lines"]]
    events, event = [], ""
    for line in lines:
        event += line
        if line == end:
            events.append(event.encode())
            event = ""
    if event:
        events.append(event.encode())
    events = events[: fault.cut_after]
    if fault.piece_bytes is None:
        return events
    whole, size = b"".join(events), fault.piece_bytes
    return [whole[start : start + size] for start in range(0, len(whole), size)]


async def _send_json(peer: Peer, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    await peer.send_head(status, JSON_TYPE, length=len(content))
    await peer.send(content)


async def _send_page(peer: Peer, proxy: str, status: int) -> None:
    content = _PAGES[proxy].format(status=status, title=_TITLES[status]).encode()
    await peer.send_head(status, _HTML_TYPE, length=len(content))
    await peer.send(content)


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    headers = Received(head, b"").headers
    if headers.get("transfer-encoding") != "chunked":
        return Received(head, await reader.readexactly(int(headers.get("content-length", "0"))))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return Received(head, body)
