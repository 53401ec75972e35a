"""POST /v1/responses, whose answer is one result or a stream of events."""

import msgspec

from tollkeeper.core.inference import Batch, Delta, Opened
from tollkeeper.core.usage import Usage
from tollkeeper.faces.endpoint import Request, Streamed
from tollkeeper.faces.responses.call import PreparedResponse, responses_call
from tollkeeper.faces.responses.output import Listener, Output
from tollkeeper.faces.responses.result import begun_response, ended_response
from tollkeeper.faces.responses.stream import ResponseStream
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import responses as wire
from tollkeeper.faces.wire.response_object import Response


class ResponseAssembly:
    """The call's sink if the answer isn't streamed."""

    def __init__(self, prepared: PreparedResponse) -> None:
        self._prepared = prepared
        self._initial_response = prepared.initial_response
        self._output = Output(
            prepared.call.request_id,
            Listener(),
            owner=prepared.call.organization_id.int,
            logprobs=prepared.includes_logprobs,
            seal=prepared.seal,
            flat_names=prepared.flat_names,
        )

    async def take(self, batch: Batch) -> None:
        for event in batch:
            if isinstance(event, Delta):
                await self._output.add(event)
            elif isinstance(event, Opened):
                self._initial_response = begun_response(self._prepared, event)

    def held_back(self) -> None:
        """The client gets nothing before the answer is complete anyway."""

    def text_writer(self) -> None:
        """The text arrives in `take` instead."""

    def response(self, usage: Usage, now: int) -> Response:
        return ended_response(self._initial_response, self._output, usage, now)


async def response_create(
    services: ApiServices, request: Request[wire.ResponsesRequest, None]
) -> msgspec.Struct | Streamed:
    prepared = await responses_call(services, request)
    if request.body.stream:
        return Streamed(ResponseStream(services, request, prepared))
    assembly = ResponseAssembly(prepared)
    tab = await services.inference.infer(prepared.call, prepared.plan, assembly, request)
    request.add_cost_header(tab.cost_picousd)
    return assembly.response(tab.usage, services.clock())
