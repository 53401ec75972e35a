"""The protocols that a backend may speak."""

from collections.abc import Mapping

from tollkeeper.backends.chat.wire import ChatWire
from tollkeeper.backends.config import BackendConfig, WireProtocol
from tollkeeper.backends.responses.wire import ResponsesWire
from tollkeeper.backends.wire import Wire

_WIRES: Mapping[WireProtocol, Wire] = {
    WireProtocol.CHAT: ChatWire(),
    WireProtocol.RESPONSES: ResponsesWire(),
}


def wire_for(config: BackendConfig) -> Wire:
    return _WIRES[config.protocol]
