"""Helpers that create calls of a Claude model and the Messages requests that the wire sends for them."""

import json
from dataclasses import replace
from typing import Any

from tests.support.backend_calls import MODEL, make_call
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.inference import Call
from tollkeeper.core.messages_behavior import MessagesBehavior
from tollkeeper.providers.anthropic.wire import Endpoint, MessagesWire
from tollkeeper.providers.claude_thinking import OPTIONS

CLAUDE = replace(
    MODEL,
    options=dict(OPTIONS),
    supported_features=(*MODEL.supported_features, Feature.REASONING),
)


def behaving(**changes: Any) -> Model:
    return replace(CLAUDE, messages=MessagesBehavior(**changes))


def claude_call(*, model: Model = CLAUDE, **fields: Any) -> Call:
    return make_call(catalog_model=model, **fields)


def sent(call: Call, *, stream: bool = False, endpoint: Endpoint = Endpoint.ANTHROPIC) -> Any:
    """Returns the body that the wire sends for a call."""
    return json.loads(MessagesWire(endpoint).encode_request(call, stream=stream, extra={}))


def sent_for(*, model: Model = CLAUDE, **fields: Any) -> Any:
    return sent(claude_call(model=model, **fields))
