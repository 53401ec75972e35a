"""Turns a chat request into a `Call` (one inference). First rejects `store: true`, fields that exclude
each other, and fields that need another field which is missing.

A `Plan` contains the data of a call that depends only on the key and the model, such as the backend.
"""

from functools import partial

from tollkeeper.api.calls import new_call, read_large, supported_prompt
from tollkeeper.api.chat.prompt import read_prompt
from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.wire import chat as wire
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.services.calls.options import output_limit
from tollkeeper.services.calls.plans import Plan
from tollkeeper.services.use_cases import Services


async def chat_call(
    services: Services, request: Request[wire.ChatRequest, None], session: str | None
) -> tuple[Call, Plan]:
    body, caller = request.body, request.project_caller
    _check_combinations(body)
    plan = await services.plans.plan_for(caller, body.model)
    model, cache_key = plan.model, body.prompt_cache_key
    limit_field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    output_tokens_max = output_limit(
        body.max_tokens or body.max_completion_tokens, model, param=limit_field
    )
    if body.reasoning is not None:
        output_limit(body.reasoning.max_tokens, model, param="reasoning.max_tokens")
    caching = plan.caching
    if cache_key is not None or body.cache_salt is not None:
        caching = services.isolation.caching_wish(caller, model, cache_key, body.cache_salt)
    read = partial(supported_prompt, model, read_prompt, body, request.raw_body, model, caching)
    prompt = await read_large(request, read) if request.is_large else read()
    call = new_call(
        services,
        request,
        plan,
        prompt,
        output_tokens_max,
        streamed=body.stream,
        session=session,
        cache_key=cache_key,
        output_limit_field=limit_field,
        choices=body.n or 1,
        policy_ids=body.policy_ids,
    )
    return call, plan


def hides_reasoning(body: wire.ChatRequest) -> bool:
    return body.include_reasoning is False or (
        body.reasoning is not None and body.reasoning.exclude is True
    )


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
        effort, flat_effort = body.reasoning.effort, body.reasoning_effort
        if effort is not None and flat_effort is not None and effort != flat_effort:
            raise InvalidRequest(
                "reasoning.effort and reasoning_effort differ: send one of them.",
                param="reasoning_effort",
            )
        if body.reasoning.max_tokens is not None and (effort or flat_effort) is not None:
            raise InvalidRequest(
                "Send an effort or reasoning.max_tokens, not both.", param="reasoning.max_tokens"
            )
