"""Turns a Messages request into a call."""

from functools import partial

import msgspec

from tollkeeper.calls.options import output_limit
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.reasoning_seal import Sealer
from tollkeeper.core.conventions import MESSAGES_WEB_TOOLS
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inference import Call
from tollkeeper.faces.calls import new_call
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.messages.prompt import read_prompt
from tollkeeper.faces.use_cases import ApiServices
from tollkeeper.faces.wire import messages as wire


class PreparedMessage(msgspec.Struct, frozen=True):
    """A call and what's needed to answer it in the Messages protocol."""

    call: Call
    plan: Plan
    seal: Sealer
    hides_reasoning: bool


async def message_call(
    services: ApiServices,
    request: Request[wire.MessagesRequest, wire.MessagesQuery],
    beta_flags: tuple[str, ...],
) -> PreparedMessage:
    body, caller = request.body, request.project_caller
    _check_fields(body)
    plan = services.plans.cached(caller, body.model)
    if plan is None:
        plan = await services.plans.create(caller, body.model)
    model = plan.model
    output_tokens_max = output_limit(body.max_tokens, model, "max_tokens")
    unseal = partial(services.reasoning_seal.unseal, caller)
    call = await new_call(
        services,
        request,
        plan,
        partial(read_prompt, body, model, MESSAGES_WEB_TOOLS, unseal, plan.caching),
        output_tokens_max,
        streamed=body.stream is True,
        # Clients put a session id here, so it serves as the cache key.
        cache_key=None if body.metadata is None else body.metadata.user_id,
        beta_flags=beta_flags,
    )
    return PreparedMessage(
        call=call,
        plan=plan,
        seal=services.reasoning_seal.sealer(caller, model),
        hides_reasoning=isinstance(body.thinking, wire.ThinkingDisabled),
    )


def _check_fields(body: wire.MessagesRequest) -> None:
    thinking = body.thinking
    if isinstance(thinking, wire.ThinkingEnabled) and thinking.budget_tokens >= body.max_tokens:
        raise InvalidRequest(
            "budget_tokens must be less than max_tokens.", param="thinking.budget_tokens"
        )
    for name in ("mcp_servers", "container", "inference_geo"):
        if getattr(body, name):
            raise OptionUnsupported(f"{name} is not supported.", param=name)
