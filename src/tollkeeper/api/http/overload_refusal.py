"""Refuses calls of an overloaded process at once: without a task, and with an answer that is rendered
once.

The application refuses the same calls with the same answer, in three times the CPU time. It also
answers whatever this file does not recognise at first sight.
"""

from tollkeeper.api.http import request as incoming
from tollkeeper.api.http.envelope import REQUEST_ID, ErrorStyle, render_error
from tollkeeper.api.http.exchange import Exchange
from tollkeeper.api.http.head import HeadReading, RequestHead
from tollkeeper.api.http.metrics import request_answered
from tollkeeper.api.http.router import Router
from tollkeeper.domain.access import ProjectCaller, require
from tollkeeper.domain.errors import TollkeeperError
from tollkeeper.services.overload import overloaded
from tollkeeper.services.request_ids import new_request_id_text
from tollkeeper.services.use_cases import Services


class OverloadRefusal:
    def __init__(self, services: Services, router: Router, customer_key_header: bytes) -> None:
        self._gate = services.inference.overload
        self._authentication = services.authentication
        self._request_log = services.request_log
        self._router = router
        self._customer_key_header = customer_key_header
        self._answer = _PreparedAnswer()

    @property
    def is_active(self) -> bool:
        return self._gate.is_full

    def __call__(self, exchange: Exchange) -> bool:
        if not self._gate.is_full:
            return False
        head = exchange.head
        try:
            reading = head.reading or HeadReading(*self._router.find(head.method, head.path))
            caller = self._recognised(head, reading)
        except TollkeeperError:
            return False  # The application finds the same error and renders it.
        if caller is None:
            return False
        exchange.owner = caller.organization_id.int
        if not self._gate.refuses(exchange.owner):
            return False
        request_id, operation = new_request_id_text(), reading.endpoint.operation
        self._answer.send(exchange, request_id.encode())
        request_answered(self._request_log, request_id, operation, self._answer.status, 0.0)
        return True

    def _recognised(self, head: RequestHead, reading: HeadReading) -> ProjectCaller | None:
        """The caller of a valid head that takes from a rate. None where that is not known at once, or
        where errors have an envelope of their own."""
        endpoint = reading.endpoint
        if (
            not (endpoint.rated and endpoint.admitted)
            or endpoint.error_style is not ErrorStyle.USUAL
        ):
            return None
        if head.reading is None:
            incoming.read_key(head, reading, self._customer_key_header)
        caller = self._authentication.recognise_to_refuse(reading.key)
        if caller is not None:
            require(caller, endpoint.permission)
            if head.reading is None:
                incoming.check_rest(head, reading)
        return caller


class _PreparedAnswer:
    """The refusal as the application renders it, in which only the id of the request is missing."""

    def __init__(self) -> None:
        placeholder = new_request_id_text()
        rendered = render_error(overloaded(), placeholder)
        self.status = rendered.status
        self._before, self._behind = rendered.body.split(placeholder.encode())
        self._headers = rendered.headers
        self._id_at = [name for name, _ in rendered.headers].index(REQUEST_ID)

    def send(self, exchange: Exchange, request_id: bytes) -> None:
        headers = self._headers.copy()
        headers[self._id_at] = (REQUEST_ID, request_id)
        exchange.answer(self.status, headers, self._before + request_id + self._behind)
