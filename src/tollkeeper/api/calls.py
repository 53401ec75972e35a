"""Creates a `Call` (one inference) from a request. The protocols chat, Responses and Messages share
these functions.

A `Plan` contains the data of a call that depends only on the key and the model, such as the backend.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tollkeeper.api.http.endpoint import Request
from tollkeeper.api.use_cases import ApiServices
from tollkeeper.domain.catalog import Model
from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import Prompt
from tollkeeper.runtime.large_requests import run_in_thread
from tollkeeper.services.calls.options import require_supported
from tollkeeper.services.calls.plans import Plan


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
    """Reads the prompt with `read`, and creates the call. Reads the prompt of a large request in a thread,
    and thus does not block the event loop. Raises OptionUnsupported if the prompt uses a feature that the
    model lacks.

    Calls with the same session (a request header) or the same cache key probably have prompts with a
    common beginning, so they should go to the same replica of the backend. If both are set, the session
    is used. The call contains only a hash of the session or cache key. The hash is different for each
    project.
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
    """Returns the error for a request without tools whose tool choice requires a tool."""
    return InvalidRequest(f"{param} needs a tool, but the request has no tools.", param=param)


def _read_supported(model: Model, read: Callable[[], Prompt]) -> Prompt:
    prompt = read()
    require_supported(model, prompt)
    return prompt
