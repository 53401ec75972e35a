"""Turns a chat request into a `Call`, after checks on fields that exclude or need each other."""

import msgspec

from tollkeeper.api.chat.prompt import read_prompt
from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.isolated import affinity_of, caching_wish
from tollkeeper.api.wire import chat as wire
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import CachingWish, Prompt
from tollkeeper.large_requests import beside_the_loop
from tollkeeper.services.calls.options import output_bound, require_supported
from tollkeeper.services.use_cases import Services


class PreparedChat(msgspec.Struct, frozen=True):
    """A call, and what else is needed to answer it in the chat protocol."""

    call: Call
    created: int
    hides_reasoning: bool
    includes_usage: bool


async def chat_call(
    services: Services, request: Request[wire.ChatRequest, None], session: str | None
) -> PreparedChat:
    body, caller = request.body, request.project_caller
    _check_combinations(body)
    model = await services.models.model_for_call(caller, body.model)
    bound_field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    bound = output_bound(body.max_tokens or body.max_completion_tokens, model, param=bound_field)
    if body.reasoning is not None:
        output_bound(body.reasoning.max_tokens, model, param="reasoning.max_tokens")
    caching = caching_wish(services, caller, model, body.prompt_cache_key, body.cache_salt)
    asked = (body, request.raw_body, model, caching)
    prompt = (
        await beside_the_loop(caller.organization_id.int, _supported_prompt, *asked)
        if request.is_large
        else _supported_prompt(*asked)
    )
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
        prompt=prompt,
        is_large=request.is_large,
        affinity=affinity_of(services, caller, session, body.prompt_cache_key),
        policy_ids=tuple(dict.fromkeys(body.policy_ids)),
        incoming_trace=request.traceparent,
    )
    options = body.stream_options
    return PreparedChat(
        call=call,
        created=services.clock(),
        hides_reasoning=_hides_reasoning(body),
        includes_usage=options is not None and options.include_usage is True,
    )


def _supported_prompt(
    body: wire.ChatRequest, raw_body: bytes, model: Model, caching: CachingWish
) -> Prompt:
    prompt = read_prompt(body, raw_body, model, caching)
    require_supported(model, prompt)
    return prompt


def _check_combinations(body: wire.ChatRequest) -> None:
    if body.store:
        raise InvalidRequest(
            "The gateway does not store completions: store must be false.", param="store"
        )
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
                "reasoning.effort and reasoning_effort differ: send one of them.",
                param="reasoning_effort",
            )
        if body.reasoning.max_tokens is not None and (effort or other) is not None:
            raise InvalidRequest(
                "Send an effort or reasoning.max_tokens, not both.", param="reasoning.max_tokens"
            )


def _hides_reasoning(body: wire.ChatRequest) -> bool:
    return body.include_reasoning is False or (
        body.reasoning is not None and body.reasoning.exclude is True
    )
