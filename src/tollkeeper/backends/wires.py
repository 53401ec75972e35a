"""The protocols that a backend may speak."""

from collections.abc import Mapping

from tollkeeper.backends.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.backends.chat.wire import ChatWire
from tollkeeper.backends.config import BackendConfig, WireProtocol
from tollkeeper.backends.responses.wire import ResponsesWire
from tollkeeper.backends.wire import Wire

_MESSAGES_WIRES: Mapping[WireProtocol, MessagesWire] = {
    WireProtocol.MESSAGES: MessagesWire(Endpoint.ANTHROPIC),
    WireProtocol.VERTEX_MESSAGES: MessagesWire(Endpoint.VERTEX),
}
_WIRES: Mapping[WireProtocol, Wire] = {
    WireProtocol.CHAT: ChatWire(),
    WireProtocol.RESPONSES: ResponsesWire(),
    **_MESSAGES_WIRES,
}


def wire_for(config: BackendConfig) -> Wire:
    return _WIRES[config.protocol]


def messages_wire_for(config: BackendConfig) -> MessagesWire | None:
    """The Messages wire of a backend that speaks this protocol, else None."""
    return _MESSAGES_WIRES.get(config.protocol)
