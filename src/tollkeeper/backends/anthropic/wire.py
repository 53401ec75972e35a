"""The Messages protocol behind the interface that the transport uses (`backends/wire`)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from tollkeeper.backends.answer_json import usage_alone
from tollkeeper.backends.anthropic.answer import MessagesAnswer, report_alone
from tollkeeper.backends.anthropic.records import decode_message
from tollkeeper.backends.anthropic.request import count_request, encoded, messages_request
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.inference import Call, UsageReport


class Endpoint(StrEnum):
    """Whose service it is. They differ in the path, the version and where the model is named."""

    # {url}/messages
    ANTHROPIC = "anthropic"
    # {url}/{model}:rawPredict, where the url ends in /publishers/anthropic/models
    VERTEX = "vertex"


_VERSION = "2023-06-01"
_VERTEX_VERSION = "vertex-2023-10-16"


class MessagesWire:
    def __init__(self, endpoint: Endpoint) -> None:
        self._is_vertex = endpoint is Endpoint.VERTEX
        self.headers: Mapping[str, str] = {} if self._is_vertex else {"anthropic-version": _VERSION}

    def path_for(self, model: Model, *, stream: bool) -> str:
        if not self._is_vertex:
            return "messages"
        verb = "streamRawPredict" if stream else "rawPredict"
        # Without the dot, what comes before the colon would be the scheme of an address.
        return f"./{quote(model.upstream_model, safe='@')}:{verb}"

    @property
    def count_path(self) -> str:
        return "./count-tokens:rawPredict" if self._is_vertex else "messages/count_tokens"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        body = messages_request(
            call, stream=stream, extra=extra, takes_image_urls=not self._is_vertex
        )
        if self._is_vertex:
            del body["model"]
            body["anthropic_version"] = _VERTEX_VERSION
        return encoded(body)

    def encode_count(self, call: Call) -> bytes:
        body = count_request(call, takes_image_urls=not self._is_vertex)
        if self._is_vertex:
            body["anthropic_version"] = _VERTEX_VERSION
        return encoded(body)

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        answer = MessagesAnswer(call, secrets=secrets)
        events = answer.read_whole(decode_message(body))
        if answer.failure is not None and not answer.accepted:
            raise answer.failure
        if answer.failure is not None:
            answer.failure.charged = True
        return WholeAnswer(events, answer.failure)

    def read_usage(self, body: bytes) -> UsageReport | None:
        return report_alone(usage_alone(body).usage)

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return MessagesAnswer(call, secrets=secrets)
