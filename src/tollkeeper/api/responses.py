"""Responses over HTTP: from the wire struct to a call, and from events to Responses again."""

from tollkeeper.api.endpoint import Request, Streamed
from tollkeeper.api.responses_call import responses_call
from tollkeeper.api.responses_json import ResponseAssembly
from tollkeeper.api.responses_stream import ResponseStream
from tollkeeper.api.session import session_of
from tollkeeper.api.wire import responses as wire
from tollkeeper.api.wire.response_object import Response
from tollkeeper.bootstrap import Services


async def response_create(
    services: Services, request: Request[wire.ResponsesRequest, None]
) -> Response | Streamed:
    session = session_of(request.headers, services.http.session_headers)
    prepared = await responses_call(services, request, session)
    if request.body.stream:
        return Streamed(ResponseStream(services, request, prepared))
    assembly = ResponseAssembly(prepared)
    outcome = await services.inference.infer(
        prepared.call, prepared.prompt_estimate, assembly, request
    )
    return assembly.response(outcome.usage, services.clock())
