"""Implements `Wire`, the interface of a backend protocol, for the Responses protocol."""

from collections.abc import Mapping
from typing import Any

from tollkeeper.backends.answer_json import decode_any, decode_usage_only, value_or_none
from tollkeeper.backends.responses.answer import ResponsesAnswer
from tollkeeper.backends.responses.request import encode_responses_request
from tollkeeper.backends.responses.result import decode_result
from tollkeeper.backends.responses.usage import read_responses_usage
from tollkeeper.backends.transport.framing import Framing
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.inference import Call, UsageReport


class ResponsesWire:
    """Implements `Wire`."""

    headers: Mapping[str, str] = {}
    framing = Framing.SERVER_SENT_EVENTS

    def __init__(self, *, takes_reasoning_text: bool = True) -> None:
        self._takes_reasoning_text = takes_reasoning_text

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        return "responses"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        return encode_responses_request(
            call,
            stream=stream,
            extra=extra,
            takes_reasoning_text=self._takes_reasoning_text,
        )

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        answer = ResponsesAnswer(call, secrets=secrets)
        return answer.whole_answer(answer.read_result(decode_result(body)))

    def read_usage(self, body: bytes) -> UsageReport | None:
        usage_only = decode_usage_only(body)
        usage = value_or_none(usage_only.usage)
        if usage is None:
            return None
        return read_responses_usage(decode_any(usage), service_tier=usage_only.tier)

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return ResponsesAnswer(call, secrets=secrets)
