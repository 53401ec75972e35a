"""Turns a Messages request into a `Call`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.isolated import affinity_of, caching_wish
from tollkeeper.api.messages.prompt import read_prompt
from tollkeeper.api.wire import messages as wire
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.conventions import MESSAGES_WEB_TOOLS
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import Prompt
from tollkeeper.large_requests import beside_the_loop
from tollkeeper.services.calls.options import output_bound, require_supported
from tollkeeper.services.calls.reasoning_seal import Sealer
from tollkeeper.services.use_cases import Services

_BOUND_FIELD = "max_tokens"


class PreparedMessage(msgspec.Struct, frozen=True):
    """A call, and what else is needed to answer it in the Messages protocol."""

    call: Call
    # Seals reasoning, so that the client can send it back.
    seal: Sealer
    hides_reasoning: bool


async def message_call(
    services: Services,
    request: Request[wire.MessagesRequest, wire.MessagesQuery],
    session: str | None,
    beta_flags: tuple[str, ...],
) -> PreparedMessage:
    body, caller = request.body, request.project_caller
    _check_fields(body)
    model = await services.models.model_for_call(caller, body.model)
    bound = output_bound(body.max_tokens, model, param=_BOUND_FIELD)
    caching = caching_wish(services, caller, model, None)
    unseal = partial(services.reasoning_seal.unseal, caller)
    web_tools = MESSAGES_WEB_TOOLS
    prompt = await supported_prompt(request, read_prompt, body, model, web_tools, unseal, caching)
    call = Call(
        request_id=request.id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        model=model,
        choices=1,
        output_tokens_max=bound,
        output_bound_field=_BOUND_FIELD,
        streamed=body.stream is True,
        prompt=prompt,
        is_large=request.is_large,
        # Clients put the id of a session into the id of the user.
        affinity=affinity_of(services, caller, session, prompt.identity.user),
        beta_flags=beta_flags,
        incoming_trace=request.traceparent,
    )
    return PreparedMessage(
        call=call,
        seal=services.reasoning_seal.sealer(caller, model),
        hides_reasoning=isinstance(body.thinking, wire.ThinkingDisabled),
    )


async def supported_prompt(
    request: Request[Any, Any],
    read: Callable[..., Prompt],
    body: msgspec.Struct,
    model: Model,
    *asked: Any,
) -> Prompt:
    """Reads the prompt of a body, in the thread for large requests if it is large, and raises
    OptionUnsupported for what the model lacks."""

    def read_supported() -> Prompt:
        prompt = read(body, model, *asked)
        require_supported(model, prompt)
        return prompt

    if not request.is_large:
        return read_supported()
    return await beside_the_loop(request.project_caller.organization_id.int, read_supported)


def _check_fields(body: wire.MessagesRequest) -> None:
    thinking = body.thinking
    if isinstance(thinking, wire.ThinkingEnabled) and thinking.budget_tokens >= body.max_tokens:
        raise InvalidRequest(
            "The budget must be less than max_tokens.", param="thinking.budget_tokens"
        )
    for name in ("mcp_servers", "container", "inference_geo"):
        if getattr(body, name):
            raise OptionUnsupported(f"{name} is not supported.", param=name)
