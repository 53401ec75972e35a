"""Implements `Wire`, the interface of a backend protocol, for the Gemini protocol."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from tollkeeper.backends.gemini import records
from tollkeeper.backends.gemini.answer import GeminiAnswer, report_from_usage
from tollkeeper.backends.gemini.request import count_request, encoded, generate_request
from tollkeeper.backends.transport.framing import Framing
from tollkeeper.backends.wire import AnswerReader, WholeAnswer
from tollkeeper.domain.inference import Call, UsageReport


class Endpoint(StrEnum):
    """Lists the services that offer this protocol. The comments show the paths of requests for answers
    that are not streamed. Only the Gemini API has a field for the ids of tool calls."""

    # {url}/models/{model}:generateContent
    GEMINI = "gemini"
    # {url}/{model}:generateContent. The URL ends with /publishers/google/models.
    VERTEX = "vertex"


class GeminiWire:
    """Implements `Wire`, and the token count request."""

    framing = Framing.SERVER_SENT_EVENTS
    count_field = "totalTokens"

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_vertex = endpoint is Endpoint.VERTEX
        self.headers: Mapping[str, str] = {}

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        # Without `alt=sse`, the service would send the stream as one JSON array.
        return self._path(
            upstream_model, "streamGenerateContent?alt=sse" if stream else "generateContent"
        )

    def count_path_for(self, upstream_model: str) -> str:
        return self._path(upstream_model, "countTokens")

    def _path(self, upstream_model: str, verb: str) -> str:
        name = quote(upstream_model, safe="@")
        # Without "./", `urljoin` would read the text before the colon as a URL scheme.
        return f"./{name}:{verb}" if self._is_vertex else f"models/{name}:{verb}"

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        return encoded(generate_request(call, extra=extra, sends_ids=not self._is_vertex))

    def encode_count(self, call: Call) -> bytes:
        body = count_request(call, sends_ids=not self._is_vertex)
        if not self._is_vertex:
            # Without `generateContentRequest`, the Gemini API would count only `contents`.
            model = f"models/{call.model.upstream_model}"
            body = {"generateContentRequest": {"model": model, **body}}
        return encoded(body)

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        answer = GeminiAnswer(call, secrets=secrets)
        return answer.whole_answer(answer.read_whole(records.decode_answer(body)))

    def read_usage(self, body: bytes) -> UsageReport | None:
        return report_from_usage(records.decode_usage_only(body))

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return GeminiAnswer(call, secrets=secrets)
