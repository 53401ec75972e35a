"""From a chat request to a `Call`: every field is checked, then forwarded, mapped or refused."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from tollkeeper.api.call_fields import (
    TOKENS_PER_IMAGE,
    affinity_of,
    cache_fields,
    logprob_fields,
    output_bound,
    prompt_estimate,
    tier_fields,
)
from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.wire import chat as wire
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.services.calls.options import (
    SAMPLING_PARAMETERS,
    mapped_options,
    merge_fields,
    require_feature,
    require_modality,
    require_sampling,
    require_small_schemas,
)
from tollkeeper.services.use_cases import Services

# Travel as the caller wrote them: identifiers and the conversation itself.
_FORWARDED = ("messages", "user", "safety_identifier", "metadata")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")
# Nothing is published about how these reach a backend: the model's `options` say it, or nobody.
_MAPPED = ("thinking", "prompt_logprobs", "prediction", "verbosity")
_PART_MODALITIES = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "file": "file",
    "video_url": "video",
}
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _LooseMessage(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None


class _LooseRequest(msgspec.Struct):
    """A request of which only what its messages contain is read, with everything in it."""

    messages: list[_LooseMessage]


_loose = msgspec.json.Decoder(_LooseRequest)


class PreparedChat(msgspec.Struct, frozen=True):
    """A call with what only the chat protocol needs to answer it."""

    call: Call
    prompt_estimate: int
    created: int
    hides_reasoning: bool
    includes_usage: bool


async def chat_call(
    services: Services, request: Request[wire.ChatRequest, None], session: str | None
) -> PreparedChat:
    body = request.body
    _check_combinations(body)
    model = await services.models.model_for_call(request.customer, body.model)
    bound_field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    bound = output_bound(body.max_tokens or body.max_completion_tokens, model, param=bound_field)
    media = _check_parts(body, model)
    fields = _fields(services, request, model)
    require_small_schemas(model, _schemas(body))
    caller = request.customer
    call = Call(
        request_id=request.id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        model=model,
        choices=body.n or 1,
        output_tokens_max=bound,
        output_bound_field=bound_field,
        streamed=body.stream,
        fields=fields,
        affinity=affinity_of(services, caller, session, body.prompt_cache_key),
        images=media["image"],
        policy_ids=tuple(dict.fromkeys(body.policy_ids)),
    )
    options = body.stream_options
    return PreparedChat(
        call=call,
        prompt_estimate=_estimate(body, request.raw_body, model, media),
        created=services.clock(),
        hides_reasoning=_hides_reasoning(body),
        includes_usage=options is not None and options.include_usage is True,
    )


def _check_combinations(body: wire.ChatRequest) -> None:
    if body.store:
        raise InvalidRequest("Nothing is stored here: store must be false.", param="store")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest(
            "Send exactly one of max_tokens and max_completion_tokens.", param="max_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    if body.reasoning is not None:
        effort, other = body.reasoning.effort, body.reasoning_effort
        if effort is not None and other is not None and effort != other:
            raise InvalidRequest(
                "reasoning.effort and reasoning_effort differ.", param="reasoning_effort"
            )
        if body.reasoning.max_tokens is not None and (effort or other) is not None:
            raise InvalidRequest(
                "Send an effort or reasoning.max_tokens, not both.", param="reasoning.max_tokens"
            )


def _check_parts(body: wire.ChatRequest, model: Model) -> Counter[str]:
    """How many parts there are of each modality but text, all of them found to be the model's."""
    media: Counter[str] = Counter()
    for position, message in enumerate(body.messages):
        if not isinstance(message.content, list):
            continue
        for place, part in enumerate(message.content):
            modality = _PART_MODALITIES.get(part.type or "")
            if modality is None and part.image_url is not None:
                modality = "image"
            if modality is None:
                continue
            require_modality(model, modality, f"messages[{position}].content[{place}]")
            media[modality] += 1
    return media


def _fields(
    services: Services, request: Request[wire.ChatRequest, None], model: Model
) -> dict[str, Any]:
    """The backend's request by field. What must not change goes on as the caller's own bytes."""
    body, raw = request.body, _top_level.decode(request.raw_body)
    used = {name for name, value in raw.items() if bytes(value) != b"null"}
    fields: dict[str, Any] = {name: raw[name] for name in _FORWARDED if name in used}
    if any(message.model_id is not msgspec.UNSET for message in body.messages):
        fields["messages"] = _without_model_ids(raw["messages"])
    sampling = [name for name in SAMPLING_PARAMETERS if name in used]
    require_sampling(model, sampling)
    fields.update((name, raw[name]) for name in sampling)
    fields.update(_tool_fields(body, raw, used, model))
    fields.update(_format_fields(body, raw, model))
    merge_fields(fields, _reasoning_fields(body, model))
    merge_fields(
        fields, mapped_options(model, {name: raw[name] for name in _MAPPED if name in used})
    )
    merge_fields(fields, _remaining_options(body, raw, model))
    fields.update(
        cache_fields(
            services,
            request.customer,
            prompt_cache_key=body.prompt_cache_key,
            cache_salt=body.cache_salt,
        )
    )
    return fields


def _without_model_ids(messages: msgspec.Raw) -> list[dict[str, msgspec.Raw]]:
    """`model_id` is the gateway's own: it never travels."""
    found = msgspec.json.decode(messages, type=list[dict[str, msgspec.Raw]])
    for message in found:
        message.pop("model_id", None)
    return found


def _tool_fields(
    body: wire.ChatRequest, raw: dict[str, msgspec.Raw], used: set[str], model: Model
) -> dict[str, Any]:
    if not body.tools and not body.functions:
        # Without tools a choice between them asks for nothing, unless it insists on one.
        for name, choice in (
            ("tool_choice", body.tool_choice),
            ("function_call", body.function_call),
        ):
            if choice not in (None, "none", "auto"):
                raise InvalidRequest(f"{name} names a tool, but there are none.", param=name)
        return {}
    require_feature(model, Feature.TOOLS, "tools" if body.tools else "functions")
    return {name: raw[name] for name in _TOOL_FIELDS if name in used}


def _format_fields(
    body: wire.ChatRequest, raw: dict[str, msgspec.Raw], model: Model
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    wanted = body.response_format
    if isinstance(wanted, wire.JsonObjectFormat):
        require_feature(model, Feature.JSON_MODE, "response_format")
        fields["response_format"] = raw["response_format"]
    elif isinstance(wanted, wire.JsonSchemaFormat):
        require_feature(model, Feature.STRUCTURED_OUTPUTS, "response_format")
        fields["response_format"] = raw["response_format"]
    if body.logprobs:
        fields.update(logprob_fields(model, body.top_logprobs, param="logprobs"))
    if body.web_search_options is not None:
        require_feature(model, Feature.WEB_SEARCH, "web_search_options")
        fields["web_search_options"] = raw["web_search_options"]
    return fields


def _schemas(body: wire.ChatRequest) -> Iterator[tuple[str, object]]:
    """Every schema of the request, and where it is."""
    for at, tool in enumerate(body.tools or ()):
        function = tool.get("function")
        if isinstance(function, dict):
            yield f"tools[{at}].function.parameters", function.get("parameters")
    for at, function in enumerate(body.functions or ()):
        yield f"functions[{at}].parameters", function.get("parameters")
    if isinstance(body.response_format, wire.JsonSchemaFormat):
        yield "response_format.json_schema.schema", body.response_format.json_schema.schema


def _reasoning_fields(body: wire.ChatRequest, model: Model) -> dict[str, Any]:
    if body.include_reasoning is not None:
        require_feature(model, Feature.REASONING, "include_reasoning")
    effort = body.reasoning_effort
    if effort is not None:
        require_feature(model, Feature.REASONING, "reasoning_effort")
    fields: dict[str, Any] = {}
    if body.reasoning is not None:
        require_feature(model, Feature.REASONING, "reasoning")
        effort = effort or body.reasoning.effort
        wanted = {
            "reasoning.enabled": body.reasoning.enabled,
            "reasoning.max_tokens": body.reasoning.max_tokens,
        }
        fields = mapped_options(
            model, {name: value for name, value in wanted.items() if value is not None}
        )
    if effort is not None:
        fields["reasoning_effort"] = effort
    return fields


def _remaining_options(
    body: wire.ChatRequest, raw: dict[str, msgspec.Raw], model: Model
) -> dict[str, Any]:
    """Options whose ordinary value asks for nothing and whose other values a model must declare."""
    fields = tier_fields(
        model, service_tier=body.service_tier, cache_retention=body.prompt_cache_retention
    )
    if body.structuredOutputs is True:
        merge_fields(fields, mapped_options(model, {"structuredOutputs": True}))
    if body.modalities is not None:
        for position, modality in enumerate(body.modalities):
            require_modality(model, modality, f"modalities[{position}]", output=True)
        if body.modalities != ["text"]:
            fields["modalities"] = raw["modalities"]
    if body.audio is not None:
        require_modality(model, "audio", "audio", output=True)
        fields["audio"] = raw["audio"]
    return fields


def _hides_reasoning(body: wire.ChatRequest) -> bool:
    return body.include_reasoning is False or (
        body.reasoning is not None and body.reasoning.exclude is True
    )


def _estimate(body: wire.ChatRequest, raw_body: bytes, model: Model, media: Counter[str]) -> int:
    """What the prompt takes at most. Of media other than images nobody knows: all that fits."""
    if set(media) - {"image"}:
        return model.context_length
    texts: list[str] = []
    if any(isinstance(message.content, list) for message in body.messages):
        texts += _beside_text(raw_body)
    for message in body.messages:
        if isinstance(message.content, str):
            texts.append(message.content)
        elif message.content is not None:
            texts += [part.text for part in message.content if part.text]
        beside = (message.name, message.reasoning, message.reasoning_content, message.tool_call_id)
        texts += [text for text in beside if text]
        if message.tool_calls is not None or message.function_call is not None:
            called = (message.tool_calls, message.function_call)
            texts.append(msgspec.json.encode(called).decode())
    for described in (body.tools, body.functions, body.response_format):
        if described:
            texts.append(msgspec.json.encode(described).decode())
    return prompt_estimate(texts, len(body.messages)) + TOKENS_PER_IMAGE * media["image"]


def _beside_text(raw_body: bytes) -> Iterator[str]:
    """What content parts have beyond their text: a backend may read it, whatever it is called."""
    for message in _loose.decode(raw_body).messages:
        for part in message.content if isinstance(message.content, list) else ():
            known = {"type", "text", "image_url"}
            if part.get("type") in _PART_MODALITIES:
                known.add(part["type"])
            for name, value in part.items():
                if name not in known and value is not None:
                    yield msgspec.json.encode(value).decode()
