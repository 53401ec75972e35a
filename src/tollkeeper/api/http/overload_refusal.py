"""Refuses calls of an overloaded process at once: without a task, and with an answer that is rendered
once.

The application refuses the same calls with the same answer, in three times the CPU time. It also
answers whatever this file does not recognise at first sight.
"""

from tollkeeper.api.http import request as incoming
from tollkeeper.api.http.endpoint import AnyEndpoint
from tollkeeper.api.http.envelope import RenderedError, render_error
from tollkeeper.api.http.exchange import Exchange
from tollkeeper.api.http.metrics import Observation
from tollkeeper.api.http.router import Router
from tollkeeper.domain.access import KeyKind, ProjectCaller, require
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
        # The answer with an id that is no request's.
        placeholder = new_request_id_text()
        self._placeholder = placeholder.encode()
        self._rendered = render_error(overloaded(), placeholder)

    def __call__(self, exchange: Exchange) -> bool:
        if not self._gate.is_full:
            return False
        try:
            endpoint, path = self._router.find(exchange.method, exchange.path)
            caller = self._recognised(exchange, endpoint)
        except TollkeeperError:
            return False  # The application finds the same error and renders it.
        if caller is None or path or not self._gate.refuses(caller.organization_id.int):
            return False
        with Observation(self._request_log) as observation:
            request_id = observation.request_id = new_request_id_text()
            rendered = self._with_id(request_id.encode())
            observation.operation = endpoint.operation
            observation.status = rendered.status
            exchange.answer(rendered.status, rendered.headers, rendered.body)
        return True

    def _recognised(self, exchange: Exchange, endpoint: AnyEndpoint) -> ProjectCaller | None:
        """The caller of a valid head that takes from a rate. None where that is not known at once, or
        where errors have an envelope of their own."""
        if not (endpoint.rated and endpoint.admitted and endpoint.key_kind is KeyKind.PROJECT):
            return None
        if endpoint.messages_style:
            return None
        headers = exchange.headers
        presented = incoming.presented_key(headers, endpoint.key_kind, self._customer_key_header)
        caller = self._authentication.recognise_to_refuse(presented)
        if caller is not None:
            require(caller, endpoint.permission)
            if endpoint.takes_body:
                incoming.check_content_type(headers)
        return caller

    def _with_id(self, request_id: bytes) -> RenderedError:
        rendered, placeholder = self._rendered, self._placeholder
        return RenderedError(
            rendered.status,
            [(name, value.replace(placeholder, request_id)) for name, value in rendered.headers],
            rendered.body.replace(placeholder, request_id),
        )
