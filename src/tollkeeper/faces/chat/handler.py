"""POST /v1/chat/completions, whose answer is one chat completion or a stream of chunks."""

from functools import partial

import msgspec

from tollkeeper.calls.options import output_limit
from tollkeeper.faces.calls import new_call
from tollkeeper.faces.chat.completion import ChatAssembly
from tollkeeper.faces.chat.prompt import check_combinations, read_prompt
from tollkeeper.faces.chat.stream import ChatStream
from tollkeeper.faces.endpoint import Request, Streamed
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import chat as wire


async def chat_create(
    services: ApiServices, request: Request[wire.ChatRequest, None]
) -> msgspec.Struct | Streamed:
    body = request.body
    caller = request.project_caller
    check_combinations(body, request.fields)
    limit_field = "max_tokens"
    client_limit = body.max_tokens
    if body.max_completion_tokens is not None:
        limit_field, client_limit = "max_completion_tokens", body.max_completion_tokens
    plan = services.plans.cached(caller, body.model)
    if plan is None:
        plan = await services.plans.create(caller, body.model)
    model = plan.model
    cache_key = body.prompt_cache_key
    caching = plan.caching
    output_tokens_max = output_limit(client_limit, model, limit_field)
    if body.reasoning is not None:
        output_limit(body.reasoning.max_tokens, model, "reasoning.max_tokens")
    if cache_key is not None or body.cache_salt is not None:
        caching = services.isolation.caching_wish(caller, model, cache_key, body.cache_salt)
    call = await new_call(
        services,
        request,
        plan,
        partial(read_prompt, body, request.fields, model, caching),
        output_tokens_max,
        streamed=body.stream,
        cache_key=cache_key,
        output_limit_field=limit_field,
        choices=body.n or 1,
        policy_ids=body.policy_ids,
    )
    created = services.clock()
    if body.stream:
        return Streamed(ChatStream(services, request, call, plan, created))
    assembly = ChatAssembly(call, body, created)
    tab = await services.inference.infer(call, plan, assembly, request)
    request.add_cost_header(tab.cost_picousd)
    return assembly.completion(tab.usage)
