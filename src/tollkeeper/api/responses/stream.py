"""An answer as a stream of typed Responses events, written as they come."""

from typing import Any

import msgspec

from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.http.sse import DONE, EventStream
from tollkeeper.api.responses.call import PreparedResponse
from tollkeeper.api.responses.output import Kind, OpenText, Output
from tollkeeper.api.responses.result import begun_response, ended_response, failed_response
from tollkeeper.api.wire import response_object as wire
from tollkeeper.domain.inference import Batch, Delta, Opened
from tollkeeper.services.use_cases import Services

_encode = msgspec.json.Encoder().encode
_OBFUSCATED_MULTIPLE = 16


def _head(name: str) -> bytes:
    """Every event begins with its name, twice, and its number."""
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":'.encode()


# What almost every event of a stream begins with, written once.
_DELTA_HEADS = {kind: _head(f"response.{kind}.delta") for kind in Kind}
_NO_LOGPROBS = b',"logprobs":[]}\n\n'
_END = b"}\n\n"


class ResponseStream:
    """Runs the call and writes its events; also the sink of the call and the output's listener."""

    def __init__(
        self, services: Services, request: Request[Any, None], prepared: PreparedResponse
    ) -> None:
        self._services = services
        self._request = request
        self._prepared = prepared
        self._stream: EventStream | None = None
        self._begun = prepared.begun
        self._number = 0
        self._records: list[bytes] = []
        self._output = Output(
            prepared.call.request_id,
            self,
            logprobs=prepared.includes_logprobs,
            seal=prepared.seal,
        )

    async def run(self, stream: EventStream) -> None:
        self._stream = stream
        prepared = self._prepared
        outcome = await self._services.inference.infer(prepared.call, self, self._request)
        response = ended_response(self._begun, self._output, outcome.usage, self._services.clock())
        self._tell_response(f"response.{response.status}", response)
        await stream.end(self._taken() + DONE)

    def failure(self, error: Exception) -> bytes:
        """The one event that ends a stream which broke: no end mark follows it."""
        # Events of a batch that broke half-way were not sent, and now never will be.
        self._number -= len(self._records)
        self._records.clear()
        if not self._number:
            # Nothing but comments went out: clients take no end without a beginning.
            self._begin()
        response = failed_response(self._begun, self._output, error, self._request.id)
        self._tell_response("response.failed", response)
        return self._taken()

    async def take(self, batch: Batch) -> None:
        assert self._stream is not None
        for event in batch:
            if isinstance(event, Delta):
                if not self._number:
                    self._begin()
                self._output.add(event)
            elif isinstance(event, Opened):
                self._begun = begun_response(self._prepared, event)
        if self._records:
            await self._stream.write(self._taken())

    def held_back(self) -> None:
        assert self._stream is not None
        self._stream.hold()

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self._records.append(b"%b%d,%b\n\n" % (_head(name), self._number, _encode(fields)[1:]))
        self._number += 1

    def piece(self, open_text: OpenText, text: str, logprobs: list[wire.TokenLogprob]) -> None:
        place = open_text.encoded_place
        if place is None:
            place = open_text.encoded_place = _encoded_place(open_text)
        tail = _END
        if open_text.kind is Kind.TEXT:
            tail = _NO_LOGPROBS if not logprobs else b',"logprobs":%b}\n\n' % _encode(logprobs)
        if self._prepared.obfuscates:
            tail = b',"obfuscation":"%b"%b' % (_padding(text), tail)
        self._records.append(
            b"%b%d%b%b%b" % (_DELTA_HEADS[open_text.kind], self._number, place, _encode(text), tail)
        )
        self._number += 1

    def _begin(self) -> None:
        self._tell_response("response.created", self._begun)
        self._tell_response("response.in_progress", self._begun)

    def _tell_response(self, name: str, response: wire.Response) -> None:
        self.event(name, {"response": response})

    def _taken(self) -> bytes:
        records = b"".join(self._records)
        self._records.clear()
        return records


def _encoded_place(open_text: OpenText) -> bytes:
    place: dict[str, Any] = {"item_id": open_text.item_id, "output_index": open_text.output_index}
    if open_text.content_index is not None:
        place["content_index"] = open_text.content_index
    return b"," + _encode(place)[1:-1] + b',"delta":'


def _padding(text: str) -> bytes:
    """As many characters as make all short pieces equally long to whoever sees only lengths."""
    return b"0" * (-len(text.encode()) % _OBFUSCATED_MULTIPLE)
