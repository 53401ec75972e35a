"""Writes an answer as Responses events while it arrives."""

from typing import Any

import msgspec

from tollkeeper.core.inference import Batch, Delta, Opened
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.responses.call import PreparedResponse
from tollkeeper.faces.responses.output import Listener, OpenText, Output, TextKind
from tollkeeper.faces.responses.result import begun_response, ended_response, failed_response
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import response_object as wire
from tollkeeper.http.sse import DONE, EventStream

_encode = msgspec.json.Encoder().encode
# Padding fills pieces up to a multiple of this many bytes.
_OBFUSCATED_MULTIPLE = 16


def _event_start(name: str) -> bytes:
    """Up to the sequence number. The name is there twice: for SSE and as `type` in the JSON."""
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":'.encode()


# The most frequent ones, encoded once.
_DELTA_STARTS = {kind: _event_start(f"response.{kind}.delta") for kind in TextKind}
_NO_LOGPROBS = b',"logprobs":[]}\n\n'
_END = b"}\n\n"


class ResponseStream(Listener):
    """As the call's sink it adds to the output, and as its listener it encodes every change."""

    def __init__(
        self, services: ApiServices, request: Request[Any, None], prepared: PreparedResponse
    ) -> None:
        self._services = services
        self._request = request
        self._prepared = prepared
        self._stream: EventStream | None = None
        self._initial_response = prepared.initial_response
        self._number = 0
        self._records: list[bytes] = []
        self._output = Output(
            prepared.call.request_id,
            self,
            owner=prepared.call.organization_id.int,
            logprobs=prepared.includes_logprobs,
            seal=prepared.seal,
            flat_names=prepared.flat_names,
        )

    async def run(self, stream: EventStream) -> None:
        self._stream = stream
        call, plan = self._prepared.call, self._prepared.plan
        tab = await self._services.inference.infer(call, plan, self, self._request)
        response = ended_response(
            self._initial_response, self._output, tab.usage, self._services.clock()
        )
        self._response_event(f"response.{response.status}", response)
        self._output.dismiss_listener()
        await stream.end(self._take_records() + DONE)

    def failure(self, error: Exception) -> bytes:
        """No `[DONE]` follows."""
        # A batch that failed in the middle is dropped, and its numbers are used again.
        self._number -= len(self._records)
        self._records.clear()
        if not self._number:
            # Only keep-alives were sent, and clients expect `response.created` first.
            self._begin()
        response = failed_response(self._initial_response, self._output, error, self._request.id)
        self._response_event("response.failed", response)
        self._output.dismiss_listener()
        return self._take_records()

    async def take(self, batch: Batch) -> None:
        assert self._stream is not None
        for event in batch:
            if isinstance(event, Delta):
                if not self._number:
                    self._begin()
                await self._output.add(event)
            elif isinstance(event, Opened):
                self._initial_response = begun_response(self._prepared, event)
        if self._records:
            await self._stream.write(self._take_records())

    def held_back(self) -> None:
        """Until the policy check releases the answer, the client only gets keep-alives."""
        assert self._stream is not None
        self._stream.mark_held_back()

    def text_writer(self) -> None:
        """The text arrives in `take`, because the stream's last events have all of it again."""

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self._records.append(
            b"%b%d,%b\n\n" % (_event_start(name), self._number, _encode(fields)[1:])
        )
        self._number += 1

    def piece(self, open_text: OpenText, text: str, logprobs: list[msgspec.Raw]) -> None:
        place = open_text.encoded_place
        if place is None:
            place = open_text.encoded_place = _encoded_place(open_text)
        tail = _END
        if open_text.kind is TextKind.TEXT:
            tail = _NO_LOGPROBS if not logprobs else b',"logprobs":%b}\n\n' % _encode(logprobs)
        if self._prepared.obfuscates:
            tail = b',"obfuscation":"%b"%b' % (_padding(text), tail)
        self._records.append(
            b"%b%d%b%b%b"
            % (_DELTA_STARTS[open_text.kind], self._number, place, _encode(text), tail)
        )
        self._number += 1

    def _begin(self) -> None:
        self._response_event("response.created", self._initial_response)
        self._response_event("response.in_progress", self._initial_response)

    def _response_event(self, name: str, response: wire.Response) -> None:
        self.event(name, {"response": response})

    def _take_records(self) -> bytes:
        records = b"".join(self._records)
        self._records.clear()
        return records


def _encoded_place(open_text: OpenText) -> bytes:
    place: dict[str, Any] = {"item_id": open_text.item_id, "output_index": open_text.output_index}
    if open_text.content_index is not None:
        place["content_index"] = open_text.content_index
    return b"," + _encode(place)[1:-1] + b',"delta":'


def _padding(text: str) -> bytes:
    """Otherwise an observer of the encrypted connection could tell short pieces by their length."""
    return b"0" * (-len(text.encode()) % _OBFUSCATED_MULTIPLE)
