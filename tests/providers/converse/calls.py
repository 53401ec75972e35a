"""Helpers that create calls and the Converse requests that the wire sends for them."""

import json
from dataclasses import replace
from typing import Any

from tests.support.backend_calls import MODEL, make_call
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.inference import Call
from tollkeeper.core.messages_behavior import MessagesBehavior
from tollkeeper.providers.claude_thinking import OPTIONS as THINKING_OPTIONS
from tollkeeper.providers.converse.request import OPTIONS
from tollkeeper.providers.converse.wire import ConverseWire

CLAUDE = replace(
    MODEL,
    options={**OPTIONS, **THINKING_OPTIONS},
    supported_features=(*MODEL.supported_features, Feature.REASONING),
)
NOVA = replace(CLAUDE, upstream_model="eu.amazon.nova-2-lite-v1:0")
GPT = replace(CLAUDE, upstream_model="openai.gpt-oss-120b-1:0")


def behaving(**changes: Any) -> Model:
    return replace(CLAUDE, messages=MessagesBehavior(**changes))


def converse_call(*, model: Model = CLAUDE, **fields: Any) -> Call:
    return make_call(catalog_model=model, **fields)


def sent(call: Call) -> Any:
    """Returns the body that the wire sends for a call."""
    return json.loads(ConverseWire().encode_request(call, stream=False, extra={}))


def sent_for(*, model: Model = CLAUDE, **fields: Any) -> Any:
    return sent(converse_call(model=model, **fields))
