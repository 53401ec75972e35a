"""The wire of the Responses protocol."""

from collections.abc import Mapping
from typing import Any

from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.native_wire import NativeWire
from tollkeeper.providers.responses.answer import ResponsesAnswer
from tollkeeper.providers.responses.request import responses_request


class ResponsesWire(NativeWire):
    reader = ResponsesAnswer

    def __init__(self, *, takes_reasoning_text: bool = True) -> None:
        self._takes_reasoning_text = takes_reasoning_text

    def path_for(self, upstream_model: str, *, stream: bool) -> str:
        return "responses"

    def request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> FreeObject:
        takes_text = self._takes_reasoning_text
        return responses_request(call, stream=stream, extra=extra, takes_reasoning_text=takes_text)
