"""Writes an answer as Messages events while it arrives."""

from typing import Any

import msgspec

from tollkeeper.core.inference import Batch, Delta, UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import Usage, normalised
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.messages.blocks import Blocks
from tollkeeper.faces.messages.call import PreparedMessage
from tollkeeper.faces.messages.result import new_message, usage_view
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.http.envelope import ErrorStyle, error_envelope
from tollkeeper.http.sse import EventStream

_encode = msgspec.json.Encoder().encode


class MessageStream:
    """Runs the call, and is its sink."""

    def __init__(
        self, services: ApiServices, request: Request[Any, Any], prepared: PreparedMessage
    ) -> None:
        self._services = services
        self._request = request
        self._prepared = prepared
        self._blocks = Blocks(prepared)
        self._stream: EventStream | None = None
        # For the first event: the input tokens, if the backend reported them before its answer.
        self._usage = Usage(prompt_tokens=0, completion_tokens=0)
        self._has_begun = False

    async def run(self, stream: EventStream) -> None:
        self._stream = stream
        call, plan = self._prepared.call, self._prepared.plan
        tab = await self._services.inference.infer(call, plan, self, self._request)
        stop_fields = {
            "stop_reason": self._blocks.stop_reason,
            "stop_sequence": self._blocks.stop_sequence,
        }
        usage = usage_view(tab.usage)
        last_records = [
            *self._beginning(),
            _record({"type": "message_delta", "delta": stop_fields, "usage": usage}),
            _record({"type": "message_stop"}),
        ]
        await stream.end(b"".join(last_records))

    def failure(self, error: Exception) -> bytes:
        """No `message_stop` follows."""
        return _named_record("error", error_envelope(error, self._request.id, ErrorStyle.MESSAGES))

    async def take(self, batch: Batch) -> None:
        assert self._stream is not None
        records: list[bytes] = []
        for event in batch:
            if isinstance(event, Delta):
                records += self._beginning()
                records += map(_record, self._blocks.add(event))
            elif isinstance(event, UsageReport):
                self._note_usage(event)
        if records:
            await self._stream.write(b"".join(records))

    def held_back(self) -> None:
        """Until the policy check releases the answer, the client only gets pings."""
        assert self._stream is not None
        self._stream.mark_held_back()

    def text_writer(self) -> None:
        """The text arrives in `take` instead, which adds the content block's number."""

    def _beginning(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        message = new_message(self._prepared.call, self._usage)
        return [_record({"type": "message_start", "message": message})]

    def _note_usage(self, report: UsageReport) -> None:
        """Only the input tokens before the answer. The output tokens aren't final then."""
        if not self._has_begun and report.usage is not None:
            input_usage = msgspec.structs.replace(
                report.usage, completion_tokens=0, total_tokens=None
            )
            normalised_usage = normalised(input_usage)
            self._usage = normalised_usage or self._usage


def _record(event: FreeObject) -> bytes:
    return _named_record(event["type"], event)


def _named_record(name: str, event: FreeObject | msgspec.Struct) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(event))
