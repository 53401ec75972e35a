"""What an error of the library says of a call, as the status of an answer.

The gateway decides by the status whether the call may have run (`backends/refusals.py`). So the
provider's own status is passed on. An error without one has a status that says the same: 503 where
no connection was made, 501 for what the library cannot do, 400 for a request that it could not
convert, and 502 in every other case, because nobody knows then whether the provider ran the call.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

REJECTED = 400
UNSUPPORTED = 501
UNKNOWN = 502
NOT_SENT = 503
_MESSAGE_LENGTH_MAX = 1000
# Names of errors by which HTTP clients say that there was no connection to send anything on.
_NO_CONNECTION = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
    | {"ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorCertificateError"}
    | {"ConnectionTimeoutError", "ConnectionRefusedError", "gaierror"}
)
# Anthropic sends its errors also as events of a stream, whose status was 200 then.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
# Python's own words for an argument that a provider's SDK does not have.
_UNKNOWN_ARGUMENT = re.compile(r"got an unexpected keyword argument '([a-z_]+)'")
# Functions of the library that write a request: what they raise was raised before anything was sent.
_WRITING_FUNCTIONS = frozenset(
    {"_convert_completion_params", "_convert_params", "_convert_messages", "_patch_messages"}
)
# The library's own check of the arguments.
_ARGUMENTS_MODEL = "CompletionParams"
# What the library or an SDK calls a field of a chat request.
_FIELD_OF_ARGUMENT = {"stop_sequences": "stop", "max_completion_tokens": "max_tokens"}


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    message: str
    # The field of the request that the library cannot carry; only of status 501.
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"message": self.message, "code": self.status, "param": self.param}
        if self.status == UNSUPPORTED and self.param is not None:
            error["type"] = "option_unsupported"
        return {"error": error}


def unsupported(field: str, provider: str) -> Failure:
    return Failure(UNSUPPORTED, f"The library cannot ask {provider} for {field}.", param=field)


def failure_of(error: BaseException, provider: str, secrets: tuple[str, ...]) -> Failure:
    """The failure that an error of the library stands for. `secrets` are removed from its words."""
    causes = _causes(error)
    param = _unsupported_field(causes)
    if param is not None:
        return unsupported(param, provider)
    message = _without_secrets(_message(causes), secrets)
    status = _status(causes)
    if status is None and _was_writing(causes):
        status = REJECTED
    if status is None:
        names = {type(cause).__name__ for cause in causes}
        status = NOT_SENT if names & _NO_CONNECTION else UNKNOWN
    retry_after_s = _retry_after_s(causes) if status == 429 else None
    return Failure(status, message, retry_after_s=retry_after_s)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it was made of, outermost first."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause is None or cause in found:
            continue
        found.append(cause)
        original = getattr(cause, "original_exception", None)
        waiting += [original if isinstance(original, BaseException) else None, cause.__cause__]
        # Some SDKs raise their own error inside of the handler of another one.
        waiting.append(None if cause.__suppress_context__ else cause.__context__)
    return found


def _unsupported_field(causes: list[BaseException]) -> str | None:
    for cause in causes:
        name = getattr(cause, "parameter_name", None)
        if isinstance(name, str):
            # "reasoning_effort with max_tokens below 2048": the field comes first.
            return _FIELD_OF_ARGUMENT.get(name, name.partition(" ")[0])
        if isinstance(cause, TypeError):
            found = _UNKNOWN_ARGUMENT.search(str(cause))
            if found is not None:
                return _FIELD_OF_ARGUMENT.get(found[1], found[1])
    return None


def _status(causes: list[BaseException]) -> int | None:
    for cause in causes:
        status = getattr(cause, "status_code", None)
        if type(status) is not int:
            continue
        if status >= 300:
            return min(status, 599)
        # An error inside of an answer that had begun well.
        kind = getattr(cause, "error_type", None)
        return _STATUS_OF_TYPE.get(kind) if isinstance(kind, str) else None
    return None


def _was_writing(causes: list[BaseException]) -> bool:
    """Whether the error arose while the request was written, before anything was sent."""
    for cause in causes:
        if getattr(cause, "title", None) == _ARGUMENTS_MODEL:
            return True
        traceback = cause.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_name in _WRITING_FUNCTIONS:
                return True
            traceback = traceback.tb_next
    return False


def _retry_after_s(causes: list[BaseException]) -> int | None:
    for cause in causes:
        value = getattr(cause, "retry_after", None)
        try:
            seconds = float(value) if isinstance(value, str) else math.nan
        except ValueError:  # a date
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return math.ceil(seconds)
    return None


def _message(causes: list[BaseException]) -> str:
    """The provider's own words where its answer has them, else those of the error."""
    for cause in causes:
        body = getattr(cause, "body", None)
        if isinstance(body, dict):
            nested = body.get("error")
            for place in (nested if isinstance(nested, dict) else {}, body):
                if isinstance(words := place.get("message"), str):
                    return words
    return str(causes[0])


def _without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[removed]")
    return text[:_MESSAGE_LENGTH_MAX]
