"""Chat completions over HTTP: from the wire struct to a call, and from events to chat again."""

from tollkeeper.api.chat_call import chat_call
from tollkeeper.api.chat_json import ChatAssembly
from tollkeeper.api.chat_stream import ChatStream
from tollkeeper.api.endpoint import Request, Streamed
from tollkeeper.api.session import session_of
from tollkeeper.api.wire import chat as wire
from tollkeeper.bootstrap import Services


async def chat_create(
    services: Services, request: Request[wire.ChatRequest, None]
) -> wire.ChatCompletion | Streamed:
    session = session_of(request.headers, services.http.session_headers)
    prepared = await chat_call(services, request, session)
    if request.body.stream:
        return Streamed(ChatStream(services, request, prepared))
    assembly = ChatAssembly(prepared)
    outcome = await services.inference.infer(
        prepared.call, prepared.prompt_estimate, assembly, request
    )
    return assembly.completion(outcome.usage)
