"""From a Responses request to a `Call`: the same call that chat makes, in the words of chat."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tollkeeper.api.call_fields import (
    affinity_of,
    cache_fields,
    logprob_fields,
    output_bound,
    tier_fields,
)
from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.responses.input import ENCRYPTED_REASONING, Conversation
from tollkeeper.api.responses.tools import Tools, read_tools, shown_choice, tool_fields
from tollkeeper.api.responses.truncation import prompt_size, truncated
from tollkeeper.api.wire import chat as chat_wire
from tollkeeper.api.wire import responses as wire
from tollkeeper.api.wire.response_object import ReasoningShown, Response
from tollkeeper.domain.access import CustomerCaller
from tollkeeper.domain.catalog import Feature, Model
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.services.calls.options import (
    mapped_options,
    require_feature,
    require_sampling,
    require_small_schemas,
)
from tollkeeper.services.calls.reasoning_seal import KeptReasoning
from tollkeeper.services.use_cases import Services

_SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
# Travel as the caller wrote them.
_FORWARDED = ("user", "safety_identifier", "metadata")
_LOGPROBS = "message.output_text.logprobs"
# Input is never part of a result here, so there is nothing that this could add.
_IMAGE_ADDRESSES = "message.input_image.image_url"
# What chat calls the output bound.
_BOUND_FIELD = "max_tokens"


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """A call with what only the Responses protocol needs to answer it."""

    call: Call
    prompt_estimate: int
    # The result as it is before anything came: what the caller asked for, shown again.
    begun: Response
    includes_logprobs: bool
    # Makes of reasoning what the caller may keep and send back, where it was asked for.
    seal: Callable[[str, tuple[str, ...]], str] | None
    obfuscates: bool


async def responses_call(
    services: Services, request: Request[wire.ResponsesRequest, None], session: str | None
) -> PreparedResponse:
    body, caller = request.body, request.customer
    _check_stateless(body)
    _check_combinations(body)
    model = await services.models.model_for_call(caller, body.model)
    bound = output_bound(body.max_output_tokens, model, param="max_output_tokens")
    conversation = Conversation(model, partial(services.reasoning_seal.unseal, caller))
    _fill(conversation, body)
    tools = read_tools(body.tools or (), model)
    fields = _fields(body, model, tools)
    require_small_schemas(model, _schemas(body, tools))
    fields.update(cache_fields(services, caller, prompt_cache_key=body.prompt_cache_key))
    call = Call(
        request_id=request.id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        model=model,
        choices=1,
        output_tokens_max=bound,
        output_bound_field=_BOUND_FIELD,
        streamed=body.stream is True,
        fields={"messages": conversation.messages, **fields},
        affinity=affinity_of(services, caller, session, body.prompt_cache_key),
        images=conversation.images,
        policy_ids=tuple(dict.fromkeys(body.policy_ids or ())),
    )
    if body.truncation == "auto":
        call = await truncated(services, call)
    options, include = body.stream_options, body.include or ()
    return PreparedResponse(
        call=call,
        prompt_estimate=prompt_size(call),
        begun=_begun(call, body, tools, services.clock()),
        includes_logprobs=_LOGPROBS in include,
        seal=_sealing(services, caller, model) if ENCRYPTED_REASONING in include else None,
        obfuscates=options is not None and options.include_obfuscation is True,
    )


def _sealing(
    services: Services, caller: CustomerCaller, model: Model
) -> Callable[[str, tuple[str, ...]], str]:
    def seal(text: str, sealed_by_backend: tuple[str, ...]) -> str:
        kept = KeptReasoning(text, model.id, sealed_by_backend)
        return services.reasoning_seal.seal(caller, kept)

    return seal


def _check_stateless(body: wire.ResponsesRequest) -> None:
    """Nothing is stored and nothing runs on after its answer: what needs either is refused."""
    if body.store:
        raise InvalidRequest("Nothing is stored here: store must be false.", param="store")
    if body.background:
        raise InvalidRequest(
            "Nothing runs in the background here: background must be false.", param="background"
        )
    stored: Mapping[str, tuple[object, str]] = {
        "previous_response_id": (body.previous_response_id, "send the conversation in input"),
        "conversation": (body.conversation, "send the conversation in input"),
        "prompt": (body.prompt, "send the prompt's text in instructions and input"),
    }
    for name, (value, instead) in stored.items():
        if value is not None:
            raise InvalidRequest(f"Nothing is stored here: {instead}.", param=name)


def _check_combinations(body: wire.ResponsesRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if body.top_logprobs and _LOGPROBS not in (body.include or ()):
        raise InvalidRequest(f"top_logprobs needs {_LOGPROBS} in include.", param="top_logprobs")
    reasoning = body.reasoning
    if (
        reasoning is not None
        and reasoning.summary is not None
        and reasoning.generate_summary not in (None, reasoning.summary)
    ):
        raise InvalidRequest(
            "reasoning.summary and reasoning.generate_summary differ.",
            param="reasoning.generate_summary",
        )


def _fill(conversation: Conversation, body: wire.ResponsesRequest) -> None:
    if body.instructions is not None:
        conversation.instruct(body.instructions)
    if isinstance(body.input, str):
        conversation.say(body.input)
    else:
        for at, item in enumerate(body.input):
            conversation.add(item, f"input[{at}]")


def _fields(body: wire.ResponsesRequest, model: Model, tools: Tools) -> dict[str, Any]:
    """The backend's request by field, but for messages and cache keys."""
    given = {name: getattr(body, name) for name in (*_FORWARDED, *_SAMPLING)}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    require_sampling(model, [name for name in _SAMPLING if name in fields])
    fields.update(tool_fields(tools, body))
    fields.update(_text_fields(body.text, model))
    fields.update(_reasoning_fields(body.reasoning, model))
    fields.update(_include_fields(body, model))
    fields.update(
        tier_fields(
            model, service_tier=body.service_tier, cache_retention=body.prompt_cache_retention
        )
    )
    if body.max_tool_calls is not None:
        fields.update(mapped_options(model, {"max_tool_calls": body.max_tool_calls}))
    return fields


def _text_fields(text: wire.ResponsesText | None, model: Model) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if text is None:
        return fields
    if text.verbosity is not None:
        fields.update(mapped_options(model, {"verbosity": text.verbosity}, within="text."))
    match text.format:
        case chat_wire.JsonObjectFormat():
            require_feature(model, Feature.JSON_MODE, "text.format")
            fields["response_format"] = {"type": "json_object"}
        case wire.ResponsesJsonSchemaFormat() as wanted:
            require_feature(model, Feature.STRUCTURED_OUTPUTS, "text.format")
            given = msgspec.structs.asdict(wanted)
            schema = {name: value for name, value in given.items() if value is not None}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _schemas(body: wire.ResponsesRequest, tools: Tools) -> Iterator[tuple[str, object]]:
    """Every schema of the request, and where it is."""
    for at, tool in enumerate(tools.shown):
        yield f"tools[{at}].parameters", tool.get("parameters")
    if body.text is not None and isinstance(body.text.format, wire.ResponsesJsonSchemaFormat):
        yield "text.format.schema", body.text.format.schema


def _reasoning_fields(reasoning: wire.ResponsesReasoning | None, model: Model) -> dict[str, Any]:
    """Chat backends show their reasoning as it is: a summary that is left to them is none, unless
    the model says how it is asked for."""
    if reasoning is None:
        return {}
    given = msgspec.structs.asdict(reasoning)
    for name, value in given.items():
        if value is not None:
            require_feature(model, Feature.REASONING, f"reasoning.{name}")
    ordinary = {
        "summary": "auto",
        "generate_summary": "auto",
        "context": "auto",
        "mode": "standard",
    }
    wanted = {
        f"reasoning.{name}": given[name]
        for name, value in ordinary.items()
        if given[name] is not None
        and (given[name] != value or f"reasoning.{name}" in model.options)
    }
    fields = mapped_options(model, wanted)
    if reasoning.effort is not None:
        fields["reasoning_effort"] = reasoning.effort
    return fields


def _include_fields(body: wire.ResponsesRequest, model: Model) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for at, wanted in enumerate(body.include or ()):
        param = f"include[{at}]"
        if wanted == _LOGPROBS:
            fields.update(logprob_fields(model, body.top_logprobs, param=param))
        elif wanted == ENCRYPTED_REASONING:
            require_feature(model, Feature.REASONING, param)
            if ENCRYPTED_REASONING in model.options:
                fields.update(mapped_options(model, {ENCRYPTED_REASONING: True}))
        elif wanted != _IMAGE_ADDRESSES:
            raise OptionUnsupported(f"{wanted} needs a tool that is not offered here.", param=param)
    return fields


def _begun(call: Call, body: wire.ResponsesRequest, tools: Tools, now: int) -> Response:
    reasoning = body.reasoning or wire.ResponsesReasoning()
    return Response(
        id=f"resp_{call.request_id.replace('-', '')}",
        object="response",
        created_at=now,
        completed_at=None,
        status="in_progress",
        error=None,
        incomplete_details=None,
        model=call.model.id,
        output=[],
        usage=None,
        instructions=body.instructions,
        max_output_tokens=call.output_tokens_max,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=ReasoningShown(
            effort=reasoning.effort, summary=reasoning.summary or reasoning.generate_summary
        ),
        text=_shown_text(body.text),
        tool_choice=shown_choice(body.tool_choice),
        tools=tools.shown,
        truncation=body.truncation or "disabled",
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        top_logprobs=body.top_logprobs or 0,
        service_tier="default" if body.service_tier in (None, "auto") else body.service_tier,
        safety_identifier=body.safety_identifier,
        user=body.user,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        background=False,
        store=False,
        previous_response_id=None,
        conversation=None,
        prompt=None,
    )


def _shown_text(text: wire.ResponsesText | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"format": {"type": "text"}}
    if text is not None and text.format is not None:
        shown["format"] = msgspec.to_builtins(text.format)
        if isinstance(text.format, wire.ResponsesJsonSchemaFormat):
            # A result says yes or no, where a request may leave it open.
            shown["format"]["strict"] = text.format.strict is True
    if text is not None and text.verbosity is not None:
        shown["verbosity"] = text.verbosity
    return shown
