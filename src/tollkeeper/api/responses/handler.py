"""Handles POST /v1/responses."""

import msgspec

from tollkeeper.api.http.endpoint import Reply, Request, Streamed, with_cost
from tollkeeper.api.responses.call import responses_call
from tollkeeper.api.responses.stream import ResponseStream
from tollkeeper.api.responses.whole import ResponseAssembly
from tollkeeper.api.wire import responses as wire
from tollkeeper.services.use_cases import Services


async def response_create(
    services: Services, request: Request[wire.ResponsesRequest, None]
) -> msgspec.Struct | Reply | Streamed:
    prepared = await responses_call(services, request, request.reading.session)
    if request.body.stream:
        return Streamed(ResponseStream(services, request, prepared))
    assembly = ResponseAssembly(prepared)
    tab = await services.inference.infer(prepared.call, prepared.plan, assembly, request)
    result = assembly.response(tab.usage, services.clock())
    return with_cost(result, tab.cost_picousd, request.conventions)
