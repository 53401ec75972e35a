"""Turns requests into calls, for chat, Responses and Messages."""

from collections.abc import Callable, Sequence
from typing import Any

from tollkeeper.calls.options import require_supported
from tollkeeper.calls.plans import Plan
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import Prompt
from tollkeeper.core.runtime.large_requests import run_in_thread
from tollkeeper.faces.endpoint import Request
from tollkeeper.faces.use_cases import ApiServices


async def new_call(
    services: ApiServices,
    request: Request[Any, Any],
    plan: Plan,
    read: Callable[[], Prompt],
    output_tokens_max: int,
    *,
    streamed: bool,
    cache_key: str | None = None,
    output_limit_field: str = "max_tokens",
    choices: int = 1,
    policy_ids: Sequence[str] | None = None,
    beta_flags: tuple[str, ...] = (),
) -> Call:
    """Raises OptionUnsupported for a feature that the model lacks.

    Calls of the same session (a header), otherwise of the same cache key, probably share a prefix,
    so they should go to the same replica. The call only has a hash of it, which differs between
    projects.
    """
    caller = plan.caller
    model = plan.model
    context = request.context
    if request.is_large:
        prompt = await run_in_thread(caller.organization_id.int, _read_supported, model, read)
    else:
        prompt = _read_supported(model, read)
    affinity_hint = context.session or cache_key
    return Call(
        request.id,
        caller.organization_id,
        caller.project_id,
        caller.key_id,
        model,
        choices,
        output_tokens_max,
        output_limit_field,
        streamed,
        prompt,
        request.is_large,
        affinity=services.isolation.affinity(caller, affinity_hint) if affinity_hint else None,
        policy_ids=tuple(policy_ids) if policy_ids else (),
        beta_flags=beta_flags,
        incoming_trace=context.traceparent,
    )


def tool_missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} needs a tool, but the request has no tools.", param=param)


def _read_supported(model: Model, read: Callable[[], Prompt]) -> Prompt:
    prompt = read()
    require_supported(model, prompt)
    return prompt
