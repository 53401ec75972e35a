"""What chat, Responses and token counting share on the way from a request to a `Call`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tollkeeper.domain.access import CustomerCaller
from tollkeeper.domain.affinity import CachePurpose
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.conventions import DEFAULT_OUTPUT_TOKENS
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.estimate import estimate_tokens
from tollkeeper.services.calls.options import mapped_options, merge_fields, require_feature
from tollkeeper.services.use_cases import Services

# A message of the backend's chat request, where we write it ourselves.
ChatMessage = dict[str, Any]

# The largest that published formulas give for one image.
TOKENS_PER_IMAGE = 4800
_TOKENS_PER_MESSAGE = 8
_TOKENS_PER_REQUEST = 16


def output_bound(asked: int | None, model: Model, *, param: str) -> int:
    if asked is None:
        return min(DEFAULT_OUTPUT_TOKENS, model.max_output_length)
    if asked > model.max_output_length:
        raise InvalidRequest(
            f"The model {model.id} writes at most {model.max_output_length} tokens.", param=param
        )
    return asked


def affinity_of(
    services: Services, caller: CustomerCaller, session: str | None, cache_key: str | None
) -> bytes | None:
    """A session and a cache key say the same of two calls: that they share a beginning."""
    hint = session or cache_key
    return services.isolation.affinity(caller, hint) if hint else None


def cache_fields(
    services: Services,
    caller: CustomerCaller,
    *,
    prompt_cache_key: str | None,
    cache_salt: str | None = None,
) -> dict[str, Any]:
    """Never the caller's own text: two tenants with the same key must not meet in a cache."""
    isolated = services.isolation.isolated
    fields: dict[str, Any] = {}
    if prompt_cache_key is not None:
        fields["prompt_cache_key"] = isolated(
            caller, CachePurpose.PROMPT_CACHE_KEY, prompt_cache_key
        )
    if cache_salt is not None:
        fields["cache_salt"] = isolated(caller, CachePurpose.CACHE_SALT, cache_salt)
    return fields


def tier_fields(
    model: Model, *, service_tier: str | None, cache_retention: str | None
) -> dict[str, Any]:
    """Options whose ordinary value asks for nothing and whose other values a model must declare."""
    fields: dict[str, Any] = {}
    if service_tier not in (None, "auto", "default"):
        merge_fields(fields, mapped_options(model, {"service_tier": service_tier}))
    if cache_retention == "24h":
        merge_fields(fields, mapped_options(model, {"prompt_cache_retention": cache_retention}))
    return fields


def logprob_fields(model: Model, top: int | None, *, param: str) -> dict[str, Any]:
    require_feature(model, Feature.LOGPROBS, param)
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


def prompt_estimate(texts: Iterable[str], messages: int) -> int:
    """The prompt's tokens, erring high; images have their own price and bound."""
    overhead = _TOKENS_PER_REQUEST + _TOKENS_PER_MESSAGE * messages
    return estimate_tokens("".join(texts)) + overhead


def estimate_of(messages: Sequence[ChatMessage], described: Iterable[object] = ()) -> int:
    """The estimate for messages that we wrote, and for tools and formats described beside them."""
    texts = [text for message in messages for text in message_texts(message)]
    texts += [msgspec.json.encode(found).decode() for found in described if found]
    return prompt_estimate(texts, len(messages))


def message_texts(message: Mapping[str, Any]) -> Iterable[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif content is not None:
        yield from (part["text"] for part in content if part["type"] == "text")
    yield message.get("reasoning", "")
    yield from message.get("sealed_reasoning", ())
    if "tool_calls" in message:
        yield msgspec.json.encode(message["tool_calls"]).decode()
