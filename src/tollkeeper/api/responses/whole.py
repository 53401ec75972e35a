"""Assembles an answer into one Responses result."""

from tollkeeper.api.responses.call import PreparedResponse
from tollkeeper.api.responses.output import NoListener, Output
from tollkeeper.api.responses.result import begun_response, ended_response
from tollkeeper.api.wire.response_object import Response
from tollkeeper.domain.inference import Batch, Delta, Opened
from tollkeeper.domain.usage import Usage


class ResponseAssembly:
    """Collects all events until the end."""

    def __init__(self, prepared: PreparedResponse) -> None:
        self._prepared = prepared
        self._begun = prepared.begun
        self._output = Output(
            prepared.call.request_id,
            NoListener(),
            logprobs=prepared.includes_logprobs,
            seal=prepared.seal,
            flat_names=prepared.flat_names,
        )

    async def take(self, batch: Batch) -> None:
        for event in batch:
            if isinstance(event, Delta):
                self._output.add(event)
            elif isinstance(event, Opened):
                self._begun = begun_response(self._prepared, event)

    def held_back(self) -> None:
        """Does nothing, because nothing is sent before the end anyway."""

    def text_writer(self) -> None:
        """Returns None, because text comes as events too."""

    def response(self, usage: Usage, now: int) -> Response:
        return ended_response(self._begun, self._output, usage, now)
