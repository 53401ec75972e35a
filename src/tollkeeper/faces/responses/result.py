"""The Responses result when an answer has begun, ended or failed."""

import msgspec

from tollkeeper.core.errors import ProviderRejected, RateLimited
from tollkeeper.core.inference import Opened
from tollkeeper.core.provider_words import known_service_tier
from tollkeeper.core.usage import Usage
from tollkeeper.faces.responses.call import PreparedResponse
from tollkeeper.faces.responses.output import Output
from tollkeeper.faces.wire import response_object as wire
from tollkeeper.http.envelope import error_body


def begun_response(prepared: PreparedResponse, opened: Opened) -> wire.Response:
    tier = known_service_tier(opened.service_tier)
    if tier is None:
        return prepared.initial_response
    return msgspec.structs.replace(prepared.initial_response, service_tier=tier)


def ended_response(initial: wire.Response, output: Output, usage: Usage, now: int) -> wire.Response:
    reason = output.incomplete_reason
    return msgspec.structs.replace(
        initial,
        status="completed" if reason is None else "incomplete",
        completed_at=now if reason is None else None,
        incomplete_details=reason,
        output=output.items(),
        usage=_usage(usage),
    )


def failed_response(
    initial: wire.Response, output: Output, error: Exception, request_id: str
) -> wire.Response:
    body = error_body(error, request_id)
    return msgspec.structs.replace(
        initial,
        status="failed",
        error=wire.ResponseError(
            code=_error_code(error), message=body.message, type=body.type, param=body.param
        ),
        output=output.items(),
    )


def _error_code(error: Exception) -> str:
    """Responses clients reject codes other than these three. The error's `type` is more precise."""
    match error:
        case RateLimited():
            return "rate_limit_exceeded"
        case ProviderRejected():
            return "invalid_prompt"
    return "server_error"


def _usage(usage: Usage) -> wire.ResponseUsage:
    return wire.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=wire.InputTokensDetails(
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens + usage.cache_write_1h_tokens,
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )
