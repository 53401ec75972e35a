"""Selects a backend's wire."""

from collections.abc import Mapping

from tollkeeper.core.inference import Call
from tollkeeper.providers.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.providers.chat.dialect import OPENAI_DIALECT, ChatDialect
from tollkeeper.providers.chat.wire import ChatWire
from tollkeeper.providers.config import BackendConfig, OutputLimitField, WireProtocol
from tollkeeper.providers.converse.wire import ConverseWire
from tollkeeper.providers.gemini.wire import Endpoint as GeminiEndpoint
from tollkeeper.providers.gemini.wire import GeminiWire
from tollkeeper.providers.responses.wire import ResponsesWire
from tollkeeper.providers.wire import Wire

_WIRES: Mapping[WireProtocol, Wire] = {
    WireProtocol.CONVERSE: ConverseWire(),
    WireProtocol.MESSAGES: MessagesWire(Endpoint.ANTHROPIC),
    WireProtocol.VERTEX_MESSAGES: MessagesWire(Endpoint.VERTEX),
    WireProtocol.BEDROCK_MESSAGES: MessagesWire(Endpoint.BEDROCK),
    WireProtocol.GEMINI: GeminiWire(GeminiEndpoint.GEMINI),
    WireProtocol.VERTEX_GEMINI: GeminiWire(GeminiEndpoint.VERTEX),
}


def wire_for(config: BackendConfig) -> Wire:
    match config.protocol:
        case WireProtocol.CHAT:
            return _chat_wire(config)
        case WireProtocol.RESPONSES:
            return ResponsesWire(takes_reasoning_text=config.takes_reasoning_text)
    return _WIRES[config.protocol]


def beta_header(wire: Wire, call: Call) -> bytes:
    """Those that the model's settings allow. Only Anthropic's own endpoint has this header."""
    return wire.beta_header(call) if isinstance(wire, MessagesWire) else b""


def _chat_wire(config: BackendConfig) -> ChatWire:
    bound = config.output_limit_field
    dialect = ChatDialect(
        output_limit_field=None if bound is OutputLimitField.SAME_AS_CLIENT else bound.value,
        include_usage=config.include_usage,
        refused=config.refused_fields,
        renamed=config.renamed_fields,
        omitted=config.omitted_fields,
    )
    # Detected by identity in `encode_request`, which is faster than comparing fields.
    return ChatWire(OPENAI_DIALECT if dialect == OPENAI_DIALECT else dialect, config.billing_rules)
