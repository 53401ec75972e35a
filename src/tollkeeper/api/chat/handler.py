"""Handles POST /v1/chat/completions. The answer is one chat completion or a stream of chunks.

A plan contains the data of a call that depends only on the key and the model, such as the backend. A tab
contains the state of a call, such as its usage and its cost.
"""

import msgspec

from tollkeeper.api.chat.call import chat_call
from tollkeeper.api.chat.completion import ChatAssembly
from tollkeeper.api.chat.stream import ChatStream
from tollkeeper.api.http.endpoint import Reply, Request, Streamed, with_cost
from tollkeeper.api.wire import chat as wire
from tollkeeper.services.use_cases import Services


async def chat_create(
    services: Services, request: Request[wire.ChatRequest, None]
) -> msgspec.Struct | Reply | Streamed:
    call, plan = await chat_call(services, request, request.context.session)
    created = services.clock()
    if call.streamed:
        return Streamed(ChatStream(services, request, call, plan, created))
    assembly = ChatAssembly(call, request.body, created)
    tab = await services.inference.infer(call, plan, assembly, request)
    return with_cost(assembly.completion(tab.usage), tab.cost_picousd, request.conventions)
