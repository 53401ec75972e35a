"""The wire of the Converse protocol."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.bedrock import count_tokens_path
from tollkeeper.providers.converse.answer import ConverseAnswer
from tollkeeper.providers.converse.request import converse_request
from tollkeeper.providers.native_wire import CountingWire
from tollkeeper.providers.request_fields import refuse_server_tools
from tollkeeper.providers.transport.framing import Framing


class ConverseWire(CountingWire):
    framing = Framing.AWS_EVENT_STREAM
    reader = ConverseAnswer
    count_field = "inputTokens"
    counted_fields = ("messages", "system", "toolConfig", "additionalModelRequestFields")

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        verb = "converse-stream" if stream else "converse"
        return f"model/{quote(upstream_model, safe='')}/{verb}"

    def count_path_for(self, upstream_model: str) -> str:
        return count_tokens_path(upstream_model)

    def request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> FreeObject:
        return converse_request(call, extra=extra)

    def count_request(self, call: Call) -> FreeObject:
        refuse_server_tools(call.prompt)
        return {"input": {"converse": self.counted(call)}}
