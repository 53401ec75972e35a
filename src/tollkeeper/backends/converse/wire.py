"""Implements `Wire`, the interface of a backend protocol, for the Converse protocol."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tollkeeper.backends.bedrock_path import count_tokens_path
from tollkeeper.backends.converse import records
from tollkeeper.backends.converse.answer import ConverseAnswer, report_from_metadata
from tollkeeper.backends.converse.request import converse_request, count_request, encoded
from tollkeeper.backends.transport.framing import Framing
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.inference import Call, UsageReport


class ConverseWire:
    """Implements `Wire`, and the token count request."""

    headers: Mapping[str, str] = {}
    framing = Framing.AWS_EVENT_STREAM
    count_field = "inputTokens"

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        verb = "converse-stream" if stream else "converse"
        return f"model/{quote(upstream_model, safe='')}/{verb}"

    def count_path_for(self, upstream_model: str) -> str:
        return count_tokens_path(upstream_model)

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        return encoded(converse_request(call, extra=extra))

    def encode_count(self, call: Call) -> bytes:
        return encoded(count_request(call))

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        answer = ConverseAnswer(call, secrets=secrets)
        return answer.whole_answer(answer.read_whole(records.decode_answer(body)))

    def read_usage(self, body: bytes) -> UsageReport | None:
        return report_from_metadata(records.decode_metadata_only(body))

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return ConverseAnswer(call, secrets=secrets)
