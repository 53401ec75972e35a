"""The wire of Anthropic's Messages protocol."""

import base64
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.anthropic.answer import BedrockMessagesAnswer, MessagesAnswer
from tollkeeper.providers.anthropic.request import messages_request
from tollkeeper.providers.bedrock import count_tokens_path
from tollkeeper.providers.native_wire import CountingWire
from tollkeeper.providers.request_fields import refuse_server_tools
from tollkeeper.providers.transport.framing import Framing

_CACHE_MARK = "cache_control"


def adapt_to_bedrock(body: FreeObject) -> None:
    """Bedrock: the path tells whether it's a stream, `metadata` (the user) isn't sent, and the
    cache mark for the whole prompt goes to its last block."""
    body.pop("stream", None)
    body.pop("metadata", None)
    mark = body.pop(_CACHE_MARK, None)
    if mark is not None:
        blocks = body["messages"][-1]["content"]
        blocks[-1] = {**blocks[-1], _CACHE_MARK: mark}


class Endpoint(StrEnum):
    """Their paths for answers that aren't streamed are in the comments. The protocol's version and
    the place of the model's name differ too."""

    # {url}/messages
    ANTHROPIC = "anthropic"
    # {url}/{model}:rawPredict. The URL ends with /publishers/anthropic/models.
    VERTEX = "vertex"
    # {url}/model/{model}/invoke
    BEDROCK = "bedrock"


# In a header, at Anthropic.
_VERSION = "2023-06-01"
# In the body, where the path has the model.
_VERSIONS = {Endpoint.VERTEX: "vertex-2023-10-16", Endpoint.BEDROCK: "bedrock-2023-05-31"}


class MessagesWire(CountingWire):
    counted_fields = (
        *("model", "messages", "system", "tools", "tool_choice"),
        *("thinking", "output_config", "cache_control"),
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        is_anthropic = endpoint is Endpoint.ANTHROPIC
        self._is_bedrock = endpoint is Endpoint.BEDROCK
        self._takes_image_urls = is_anthropic
        self.headers: Mapping[str, str] = {"anthropic-version": _VERSION} if is_anthropic else {}
        self.reader = BedrockMessagesAnswer if self._is_bedrock else MessagesAnswer
        self.count_field = "inputTokens" if self._is_bedrock else "input_tokens"
        self.framing = Framing.AWS_EVENT_STREAM if self._is_bedrock else Framing.SERVER_SENT_EVENTS

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        match self._endpoint:
            case Endpoint.ANTHROPIC:
                return "messages"
            case Endpoint.VERTEX:
                verb = "streamRawPredict" if stream else "rawPredict"
                # Without "./", `urljoin` would read the text before the colon as a URL scheme.
                return f"./{quote(upstream_model, safe='@')}:{verb}"
        verb = "invoke-with-response-stream" if stream else "invoke"
        return f"model/{quote(upstream_model, safe='')}/{verb}"

    def count_path_for(self, upstream_model: str) -> str:
        match self._endpoint:
            case Endpoint.ANTHROPIC:
                return "messages/count_tokens"
            case Endpoint.VERTEX:
                return "./count-tokens:rawPredict"
        return count_tokens_path(upstream_model)

    def beta_header(self, call: Call) -> bytes:
        """None for Vertex and Bedrock, where the flags are a field of the body."""
        if self._endpoint in _VERSIONS or not (flags := call.supported_beta_flags):
            return b""
        return b"anthropic-beta: %b\r\n" % ",".join(flags).encode("ascii")

    def request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> FreeObject:
        body = messages_request(
            call, stream=stream, extra=extra, takes_image_urls=self._takes_image_urls
        )
        if self._endpoint in _VERSIONS:
            del body["model"]
            self._add_version(body, call)
        if self._is_bedrock:
            adapt_to_bedrock(body)
        return body

    def count_request(self, call: Call) -> FreeObject:
        if self._is_bedrock:
            refuse_server_tools(call.prompt)
            # Bedrock counts a whole call request, in base64.
            request = self.encode_request(call, stream=False, extra={})
            return {"input": {"invokeModel": {"body": base64.b64encode(request).decode("ascii")}}}
        body = messages_request(
            call, stream=False, extra={}, takes_image_urls=self._takes_image_urls
        )
        # Only in requests for token counts.
        if call.prompt.server_tools:
            body["tools"] = [*body.get("tools", ()), *call.prompt.server_tools]
        body = {name: body[name] for name in self.counted_fields if name in body}
        if self._endpoint in _VERSIONS:
            self._add_version(body, call)
        return body

    def _add_version(self, body: FreeObject, call: Call) -> None:
        body["anthropic_version"] = _VERSIONS[self._endpoint]
        if flags := call.supported_beta_flags:
            body["anthropic_beta"] = flags
