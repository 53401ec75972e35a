"""Helpers that create calls of a Gemini model and the requests that the wire sends for them."""

import json
from dataclasses import replace
from typing import Any

from tests.support.backend_calls import MODEL, make_call
from tollkeeper.core.catalog import Feature, Model
from tollkeeper.core.inference import Call
from tollkeeper.core.messages_behavior import MessagesBehavior, ThinkingStyle
from tollkeeper.providers.gemini.request import OPTIONS
from tollkeeper.providers.gemini.thinking import OPTIONS as THINKING_OPTIONS
from tollkeeper.providers.gemini.wire import Endpoint, GeminiWire

# Models since Gemini 3 take a reasoning effort. Older models take a number of reasoning tokens.
GEMINI = replace(
    MODEL,
    options={**OPTIONS, **THINKING_OPTIONS},
    supported_features=(*MODEL.supported_features, Feature.REASONING),
)
OLDER = replace(GEMINI, messages=MessagesBehavior(thinking=ThinkingStyle.BUDGET))


def gemini_call(*, model: Model = GEMINI, **fields: Any) -> Call:
    return make_call(catalog_model=model, **fields)


def sent(call: Call, *, endpoint: Endpoint = Endpoint.GEMINI) -> Any:
    """Returns the body that the wire sends for a call."""
    return json.loads(GeminiWire(endpoint).encode_request(call, stream=False, extra={}))


def sent_for(*, model: Model = GEMINI, endpoint: Endpoint = Endpoint.GEMINI, **fields: Any) -> Any:
    return sent(gemini_call(model=model, **fields), endpoint=endpoint)
