"""The wire of the Gemini protocol."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.gemini.answer import GeminiAnswer
from tollkeeper.providers.gemini.request import generate_request
from tollkeeper.providers.native_wire import CountingWire
from tollkeeper.providers.request_fields import refuse_server_tools


class Endpoint(StrEnum):
    """Their paths for answers that aren't streamed are in the comments. Only the Gemini API has a
    field for tool call ids."""

    # {url}/models/{model}:generateContent
    GEMINI = "gemini"
    # {url}/{model}:generateContent. The URL ends with /publishers/google/models.
    VERTEX = "vertex"


class GeminiWire(CountingWire):
    reader = GeminiAnswer
    count_field = "totalTokens"
    counted_fields = ("contents", "systemInstruction", "tools")

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_vertex = endpoint is Endpoint.VERTEX

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        # Without `alt=sse`, the stream would be one JSON array.
        return self._path(
            upstream_model, "streamGenerateContent?alt=sse" if stream else "generateContent"
        )

    def count_path_for(self, upstream_model: str) -> str:
        return self._path(upstream_model, "countTokens")

    def _path(self, upstream_model: str, verb: str) -> str:
        name = quote(upstream_model, safe="@")
        # Without "./", `urljoin` would read the text before the colon as a URL scheme.
        return f"./{name}:{verb}" if self._is_vertex else f"models/{name}:{verb}"

    def request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> FreeObject:
        return generate_request(call, extra=extra, sends_ids=not self._is_vertex)

    def count_request(self, call: Call) -> FreeObject:
        refuse_server_tools(call.prompt)
        body = self.counted(call)
        if self._is_vertex:
            return body
        # Without `generateContentRequest`, only `contents` would be counted.
        model = f"models/{call.model.upstream_model}"
        return {"generateContentRequest": {"model": model, **body}}
