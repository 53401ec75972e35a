"""The chat wire: one protocol, as the transport needs it."""

from collections.abc import Mapping
from typing import Any

from tollkeeper.backends.answer_json import MalformedAnswer, error_record
from tollkeeper.backends.chat.answer import (
    decode_completion,
    delta_of_completion,
    opened,
    usage_report,
)
from tollkeeper.backends.chat.request import encode_request
from tollkeeper.backends.chat.stream import AnswerStream
from tollkeeper.backends.refusals import refusal_record
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.errors import BackendFailed
from tollkeeper.domain.inference import Call, Event


class ChatWire:
    path = "/chat/completions"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        return encode_request(call, stream=stream, extra=extra)

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        completion = decode_completion(body)
        record = error_record(completion.error)
        if record is not None:
            raise refusal_record(record, secrets=secrets)
        events: list[Event] = [opened(completion)]
        seen: set[int] = set()
        unfinished = call.choices
        for choice in completion.choices or ():
            delta = delta_of_completion(choice)
            if 0 <= delta.choice < call.choices and delta.choice not in seen:
                seen.add(delta.choice)
                events.append(delta)
                unfinished -= delta.finish is not None
        if not seen:
            raise MalformedAnswer("it has no choice")
        report = usage_report(completion.usage)
        if report is not None:
            events.append(report)
        if unfinished == 0:
            return WholeAnswer(events)
        return WholeAnswer(
            events, BackendFailed("The backend did not finish every choice.", charged=True)
        )

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return AnswerStream(call, secrets=secrets)
