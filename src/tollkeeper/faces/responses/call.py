"""Turns a Responses request into a call and the initial result, with which a stream begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tollkeeper.calls.options import output_limit
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.reasoning_seal import ENCRYPTED_REASONING, Sealer
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import Prompt
from tollkeeper.faces.calls import new_call
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.responses.input import Conversation
from tollkeeper.faces.responses.namespaces import FlatNames
from tollkeeper.faces.responses.prompt import LOGPROBS, read_prompt
from tollkeeper.faces.responses.tools import Tools, read_tools, shown_choice
from tollkeeper.faces.responses.truncation import truncated
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import responses as wire
from tollkeeper.faces.wire.response_object import ReasoningShown, Response


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """A call and what's needed to answer it in the Responses protocol."""

    call: Call
    plan: Plan
    initial_response: Response
    includes_logprobs: bool
    # Lets the client send reasoning back in its next request; None if it didn't ask for that.
    seal: Sealer | None
    # Padding hides the lengths of a stream's pieces.
    obfuscates: bool
    flat_names: FlatNames


async def responses_call(
    services: ApiServices, request: Request[wire.ResponsesRequest, None]
) -> PreparedResponse:
    body, caller = request.body, request.project_caller
    _check_stateless(body)
    _check_combinations(body)
    plan = services.plans.cached(caller, body.model)
    if plan is None:
        plan = await services.plans.create(caller, body.model)
    model = plan.model
    _refuse_newer_fields(body)
    output_tokens_max = output_limit(body.max_output_tokens, model, "max_output_tokens")
    conversation = Conversation(model, partial(services.reasoning_seal.unseal, caller))
    caching = services.isolation.caching_wish(caller, model, body.prompt_cache_key)
    tools = Tools()

    def read() -> Prompt:
        # In a thread if the request is large.
        nonlocal tools
        tools = read_tools(body.tools or ())
        return read_prompt(body, model, conversation, tools, caching)

    call = await new_call(
        services,
        request,
        plan,
        read,
        output_tokens_max,
        streamed=body.stream is True,
        cache_key=body.prompt_cache_key,
        policy_ids=body.policy_ids,
    )
    if body.truncation == "auto":
        call = await truncated(services, call)
    options, include = body.stream_options, body.include or ()
    return PreparedResponse(
        call=call,
        plan=plan,
        initial_response=_initial_response(call, body, tools, services.clock()),
        includes_logprobs=LOGPROBS in include,
        seal=services.reasoning_seal.sealer(caller, model)
        if ENCRYPTED_REASONING in include
        else None,
        obfuscates=options is not None and options.include_obfuscation is True,
        flat_names=tools.flat_names,
    )


def _check_stateless(body: wire.ResponsesRequest) -> None:
    """The gateway has neither stored responses nor background work."""
    if body.store:
        raise InvalidRequest(
            "The gateway does not store responses: store must be false.", param="store"
        )
    if body.background:
        raise InvalidRequest(
            "The gateway does not run responses in the background: background must be false.",
            param="background",
        )
    needs_storage: Mapping[str, tuple[object, str]] = {
        "previous_response_id": (body.previous_response_id, "send the conversation in input"),
        "conversation": (body.conversation, "send the conversation in input"),
        "prompt": (body.prompt, "send the prompt's text in instructions and input"),
    }
    for name, (value, instead) in needs_storage.items():
        if value is not None:
            raise InvalidRequest(f"The gateway does not store responses: {instead}.", param=name)


def _check_combinations(body: wire.ResponsesRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    reasoning = body.reasoning
    if (
        reasoning is not None
        and reasoning.summary is not None
        and reasoning.generate_summary not in (None, reasoning.summary)
    ):
        raise InvalidRequest(
            "reasoning.summary and reasoning.generate_summary differ: send only summary.",
            param="reasoning.generate_summary",
        )


def _refuse_newer_fields(body: wire.ResponsesRequest) -> None:
    """OpenAI published these later, and no backend has them. Values without effect are fine."""
    image = body.image or wire.ImageOptions()
    requested: Mapping[str, object] = {
        "context_management": body.context_management,
        "moderation": body.moderation is not None,
        "access_programs": body.access_programs,
        # No backend compresses images, so only "enabled" asks for something unsupported.
        "image.context_compression": image.context_compression == "enabled",
    }
    for name, value in requested.items():
        if value:
            raise OptionUnsupported(f"{name} is not supported.", param=name)


def _initial_response(call: Call, body: wire.ResponsesRequest, tools: Tools, now: int) -> Response:
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
            # A boolean in results, but maybe null in requests.
            shown["format"]["strict"] = text.format.strict is True
    if text is not None and text.verbosity is not None:
        shown["verbosity"] = text.verbosity
    return shown
