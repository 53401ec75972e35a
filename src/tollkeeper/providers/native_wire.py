"""What all wires except chat share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from tollkeeper.core.inference import Call, UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.providers.event_reader import EventReader
from tollkeeper.providers.request_fields import encoded
from tollkeeper.providers.transport.framing import Framing
from tollkeeper.providers.wire import AnswerReader, WholeAnswer


class NativeWire(ABC):
    headers: Mapping[str, str] = {}
    framing = Framing.SERVER_SENT_EVENTS
    reader: type[EventReader]

    @abstractmethod
    def path_for(self, upstream_model: str, *, stream: bool) -> str: ...

    @abstractmethod
    def request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> FreeObject:
        """For `encode_request`."""

    def encode_request(self, call: Call, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
        return encoded(self.request(call, stream=stream, extra=extra))

    def read_whole(self, call: Call, body: bytes, *, secrets: tuple[str, ...]) -> WholeAnswer:
        return self.reader(call, secrets=secrets).whole_answer(body)

    def read_usage(self, body: bytes) -> UsageReport | None:
        return self.reader.usage_in(body)

    def open_stream(self, call: Call, *, secrets: tuple[str, ...]) -> AnswerReader:
        return self.reader(call, secrets=secrets)


class CountingWire(NativeWire):
    """With a token count request."""

    # In the answer.
    count_field: str
    # That the token count request has too.
    counted_fields: ClassVar[tuple[str, ...]]

    @abstractmethod
    def count_path_for(self, upstream_model: str) -> str: ...

    @abstractmethod
    def count_request(self, call: Call) -> FreeObject: ...

    def encode_count(self, call: Call) -> bytes:
        return encoded(self.count_request(call))

    def counted(self, call: Call) -> FreeObject:
        body = self.request(call, stream=False, extra={})
        return {name: body[name] for name in self.counted_fields if name in body}
