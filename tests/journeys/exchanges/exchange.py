"""Reads the recorded exchanges (`recorded/*.json`, `priced/*.json`), and plays one as the scripted upstream.

One file is one exchange:

- `who`: the provider or server. `shows`: what is particular about its answer.
- `source`: where the shape comes from: `SOURCES`.
- `protocol`: `chat` or `responses`.
- `request`: what the gateway sends, but for `model`. A text may be given as `{"repeat": [text, n]}`.
- `answer`: `body` is a JSON answer (`before_body`: what comes before it). Else `lines` are the lines
  of the event stream, each ended by `line_end` (LF by default). A line is a string, or an object,
  which is a `data: ` line with that object in JSON.
- `caller_reads`: `text`, `reasoning`, `calls` (name and arguments) and `finish`; or `error` with the
  status of a refusal, or with 200 for an error record within the stream.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.upstream import JSON_TYPE, SSE_TYPE, Peer, Verb

RECORDED = Path(__file__).parent / "recorded"
# Exchanges that show which prices apply.
PRICED = Path(__file__).parent / "priced"
SOURCES = ("rebuilt from documented facts", "synthetic")
_FIELDS = {"who", "shows", "source", "protocol", "request", "answer", "caller_reads"}


@dataclass(frozen=True)
class Exchange:
    name: str
    who: str
    protocol: str
    request: dict[str, Any]
    answer: dict[str, Any]
    caller_reads: dict[str, Any]

    @property
    def streamed(self) -> bool:
        return "lines" in self.answer

    def verb(self) -> Verb:
        """Sends the answer, each line of a stream in a network chunk of its own."""

        async def play(peer: Peer) -> None:
            if not self.streamed:
                before = self.answer.get("before_body", "").encode()
                body = before + json.dumps(self.answer["body"]).encode()
                await peer.send_head(200, JSON_TYPE, length=len(body))
                await peer.send(body)
                return
            await peer.send_head(200, SSE_TYPE)
            end = self.answer.get("line_end", "\n")
            for line in self.answer["lines"]:
                await peer.send_chunk((_line(line) + end).encode())
            await peer.end_chunks()

        return play

    def last_report(self) -> dict[str, Any] | None:
        """The last usage that the answer reports, wherever it stands."""
        found: list[dict[str, Any]] = []
        for said in self.answer["lines"] if self.streamed else [self.answer["body"]]:
            _collect_reports(said, found)
        return found[-1] if found else None


def load(name: str, folder: Path = RECORDED) -> Exchange:
    written = json.loads((folder / f"{name}.json").read_text())
    assert set(written) == _FIELDS
    assert written["source"] in SOURCES
    assert written["protocol"] in ("chat", "responses")
    return Exchange(
        name=name,
        who=written["who"],
        protocol=written["protocol"],
        request=_with_repeats(written["request"]),
        answer=written["answer"],
        caller_reads=written["caller_reads"],
    )


def _line(line: str | dict[str, Any]) -> str:
    if isinstance(line, str):
        return line
    return "data: " + json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _with_repeats(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_repeats(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"repeat"}:
        text, times = value["repeat"]
        return text * times
    return {name: _with_repeats(item) for name, item in value.items()}


def _collect_reports(value: Any, found: list[dict[str, Any]]) -> None:
    for name, item in value.items() if isinstance(value, dict) else ():
        if name == "usage" and isinstance(item, dict):
            found.append(item)
        elif isinstance(item, dict):
            _collect_reports(item, found)
        elif isinstance(item, list):
            for inner in item:
                _collect_reports(inner, found)
