"""Reads the recorded exchanges (`recorded/*.json`, `priced/*.json`), and plays one as the scripted upstream.

One file is one exchange:

- `who`: the provider or server. `shows`: the particular feature of its answer.
- `source`: the origin of the data, one of `SOURCES`.
- `protocol`: `chat`, `responses`, `messages`, `gemini`, `converse` or `bedrock_messages`.
- `request`: the body that the gateway sends, without `model`. A text may be `{"repeat": [text, n]}`.
- `model`, `backend`: settings that the provider's preset or an operator would have, if any.
- `asks`: the client's request by face (`chat`, `responses`); each of them is played. If the protocol
  is a face, `asks` can be left out: the client sends `request` itself.
- `answer`: `body` is a JSON answer (`before_body`: text before it; `status`: if not 200). Else
  `lines` are the lines of the event stream, each ended by `line_end` (LF by default). A line is a
  string, or an object, which is a `data: ` line with that object in JSON. Or `frames` are the frames
  of a binary stream, each an object with the name of its event or exception; the content of a `chunk`
  is sent in base64.
- `caller_reads`: `text`, `images` (addresses), `reasoning`, `refusal`, `calls` (name and arguments, and
  `custom` for a custom tool), `annotations` (URL, title, start and end) and `finish`; or `error` with the
  status of a refusal, or with 200 for an error record within the stream. `prompt_tokens` is the prompt's
  count, if the counts of the row overlap.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.upstream import JSON_TYPE, SSE_TYPE, Peer, Verb
from tests.support.upstream_converse import chunk_frame, event, exception, stream_frames

RECORDED = Path(__file__).parent / "recorded"
# Exchanges that show which prices apply.
PRICED = Path(__file__).parent / "priced"
SOURCES = ("rebuilt from documented facts", "synthetic")
_FIELDS = {"who", "shows", "source", "protocol", "request", "answer", "caller_reads"}
_FACES = ("chat", "responses")


@dataclass(frozen=True)
class Exchange:
    name: str
    who: str
    protocol: str
    request: dict[str, Any]
    # The client's request by face.
    asks: dict[str, dict[str, Any]]
    # Settings of the exchange's model and backend.
    settings: dict[str, dict[str, Any]]
    answer: dict[str, Any]
    caller_reads: dict[str, Any]
    # The prompt tokens that the client reads, if they are not the sum of the charged counts.
    told_prompt_tokens: int | None = None

    @property
    def streamed(self) -> bool:
        return "lines" in self.answer or "frames" in self.answer

    def played_as(self, face: str) -> str:
        return self.name if face == self.protocol else f"{self.name}-{face}"

    def verb(self) -> Verb:
        """Returns a verb that sends the answer. Each line of a stream is a separate network chunk."""

        async def play(peer: Peer) -> None:
            if not self.streamed:
                before = self.answer.get("before_body", "").encode()
                body = before + json.dumps(self.answer["body"]).encode()
                await peer.send_head(self.answer.get("status", 200), JSON_TYPE, length=len(body))
                await peer.send(body)
                return
            if "frames" in self.answer:
                await stream_frames(frames_of(self))(peer)
                return
            await peer.send_head(200, SSE_TYPE)
            end = self.answer.get("line_end", "\n")
            for line in self.answer["lines"]:
                await peer.send_chunk((_line(line) + end).encode())
            await peer.end_chunks()

        return play

    def last_report(self) -> dict[str, Any] | None:
        """Returns the last usage report in the answer, at any depth, or None."""
        found: list[dict[str, Any]] = []
        answer = self.answer
        told = answer.get("lines") or answer.get("frames") or [answer.get("body")]
        for said in told:
            _collect_reports(said, found)
        return found[-1] if found else None


def load(name: str, folder: Path = RECORDED) -> Exchange:
    written = json.loads((folder / f"{name}.json").read_text())
    protocol = written["protocol"]
    settings = {name: written.pop(name, {}) for name in ("model", "backend")}
    assert set(written) - {"asks"} == _FIELDS
    assert protocol in _FACES or "asks" in written
    assert written["source"] in SOURCES
    assert protocol in (*_FACES, "messages", "gemini", "converse", "bedrock_messages")
    request = _with_repeats(written["request"])
    asks = _with_repeats(written.get("asks", {protocol: request}))
    caller_reads = written["caller_reads"]
    assert asks
    assert set(asks) <= set(_FACES)
    return Exchange(
        name=name,
        who=written["who"],
        protocol=protocol,
        request=request,
        asks=asks,
        settings=settings,
        answer=written["answer"],
        caller_reads=caller_reads,
        told_prompt_tokens=caller_reads.pop("prompt_tokens", None),
    )


def frames_of(exchange: Exchange) -> list[bytes]:
    """Returns the encoded frames of a binary stream."""
    return [_frame(written) for written in exchange.answer["frames"]]


def _frame(written: dict[str, Any]) -> bytes:
    ((name, content),) = written.items()
    if name.endswith("Exception"):
        return exception(name, content["message"])
    if name == "chunk":
        return chunk_frame(b"data: " + json.dumps(content).encode())
    return event(name, **content)


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
        if name in ("usage", "usageMetadata") and isinstance(item, dict):
            found.append(item)
        elif isinstance(item, dict):
            _collect_reports(item, found)
        elif isinstance(item, list):
            for inner in item:
                _collect_reports(inner, found)
