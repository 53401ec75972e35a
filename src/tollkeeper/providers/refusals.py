"""Converts refusals to errors, without details that clients may not see. `STATUS_RULES` tells
whether a call may have run: then it's never sent to another replica, and its reservation isn't
released."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from tollkeeper.core.errors import (
    RETRY_AFTER_S_MAX,
    BackendFailed,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)

RETRY_AFTER_S_DEFAULT = 5


@dataclass(frozen=True, slots=True)
class StatusRule:
    statuses: Collection[int]
    may_have_run: bool
    # Ends a sentence that begins with "the call", which is in the error and stored with the
    # reservation.
    reason: str


# The first match decides. `docs/unsettled.md` has the same table.
STATUS_RULES = (
    # Model servers and gateways refuse calls with these.
    StatusRule((400, 422), False, "was refused for its content"),
    StatusRule((401, 403), False, "was refused for the backend's key or rules"),
    StatusRule((402,), False, "was refused because the backend requires payment"),
    StatusRule((404, 405, 501), False, "asks for something that the backend does not have"),
    StatusRule((413, 414, 431), False, "was refused for its size"),
    StatusRule((429, 498, 503, 529), False, "was refused because the backend is busy"),
    StatusRule((500,), False, "failed in the backend itself before any output"),
    # A proxy stopped waiting for the answer or lost it, or a model failed.
    StatusRule((408, 504, 524), True, "may have run: a proxy stopped waiting for it"),
    StatusRule((499,), True, "may have run: a proxy assumed that the gateway had disconnected"),
    StatusRule((502, 520), True, "may have run: a proxy lost the answer"),
    StatusRule((424,), True, "may have run: the model itself failed at it"),
    # Other refusals of the HTTP standard.
    StatusRule(
        (406, 407, 409, 410, 411, 412, 415, 416, 417, 418, 421, 423, 425, 426, 428, 451, 505),
        False,
        "was refused by the rules of HTTP",
    ),
    StatusRule(range(300, 400), False, "was redirected, and the gateway follows no redirect"),
    StatusRule(range(200, 300), True, "may have run: the status says that it succeeded"),
    StatusRule(range(400, 600), True, "may have run: the meaning of the status is unknown"),
)
_UNKNOWN_STATUS_RULE = STATUS_RULES[-1]
_RULE_BY_STATUS = {status: rule for rule in reversed(STATUS_RULES) for status in rule.statuses}
# Errors in the request, in place of a status.
_REJECTED = frozenset(
    {
        *("invalid_prompt", "invalid_request_error", "context_length_exceeded"),
        *("bio_policy", "misalignment_policy_violation", "image_content_policy_violation"),
        *("invalid_image", "invalid_image_format", "invalid_image_mode", "invalid_image_url"),
        *("invalid_base64_image", "image_too_large", "image_too_small", "image_parse_error"),
        *("image_file_too_large", "unsupported_image_media_type", "empty_image_file"),
        *("failed_to_download_image", "image_file_not_found"),
    }
)
# 400 may also mean the operator's account. Anthropic says so only in the message; DashScope and
# OpenAI have a code. Only the message's beginning counts, because the rest may quote the request:
# no client may make refusals count against the backend.
_ACCOUNT_MESSAGES = re.compile(
    r"your credit balance is too low|you have reached your specified [a-z ]{0,20}usage limits"
    r"|this organization has been disabled",
    re.IGNORECASE,
)
_ACCOUNT_CODES = ("Arrearage", "billing_hard_limit_reached")
# llama.cpp's, for a prompt longer than the context.
_CONTEXT_EXCEEDED = "exceed_context_size_error"
_RATE_LIMITED = "rate_limit_exceeded"
_AWS_QUOTA = b"ServiceQuotaExceededException"
# In an error record: a server stopped waiting, so the call may have run.
_TIMEOUT_STATUSES = (408, 499, 504, 524)
_MESSAGE_BYTES_MAX = 2048
_REMOVED = "[removed]"
# Control and invisible characters, such as those that change the text's direction.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
_DELAY = re.compile(r"([0-9]{1,18})((?:\.[0-9]{1,18})?)s")
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>]*", re.IGNORECASE)


def refusal(
    status: int,
    body: bytes,
    *,
    retry_after: bytes | None,
    secrets: tuple[str, ...],
    kind: bytes | None = None,
) -> TollkeeperError:
    """`kind` is the error's name in an AWS answer's header."""
    if status == 400 and kind is not None and kind.startswith(_AWS_QUOTA):
        # The operator's quota, not the client's fault.
        status = 429
    if status in {400, 422}:
        parsed = _parsed(body)
        if refuses_the_key(parsed):
            return _failed("The backend does not accept the gateway's key", 401)
        return _content_refusal(parsed, secrets)
    if status == 429:
        if retry_after is None:
            retry_after = _retry_delay(_parsed(body))
        return RateLimited(
            "The backend is handling too many requests.", retry_after_s=retry_after_s(retry_after)
        )
    return _failed(f"The backend answered with status {status}", status)


def refusal_record(record: Any, *, secrets: tuple[str, ...]) -> TollkeeperError:
    """With status 200, which some servers send before they check the request. `code` is then the
    real status, or a word."""
    code = record.get("code") if isinstance(record, dict) else None
    word = code if isinstance(code, str) else None
    if code in (400, 422) or word in _REJECTED:  # not a set: `code` may be an unhashable value
        return _content_refusal({"error": record}, secrets)
    if code == 429 or word == _RATE_LIMITED:
        return RateLimited(
            "The backend is handling too many requests.", retry_after_s=RETRY_AFTER_S_DEFAULT
        )
    if code in _TIMEOUT_STATUSES:
        return _failed(f"The backend answered with an error of status {code}", code)
    # A reported failure before any output isn't charged.
    is_refusal = type(code) is int and 400 <= code < 500
    return BackendFailed("The backend answered with an error.", may_be_client_fault=is_refusal)


def _content_refusal(body: Any, secrets: tuple[str, ...]) -> TollkeeperError:
    """With 400 or 422. If it's about the operator's account, another backend can answer, and the
    client doesn't see the provider's text."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and (
        error.get("code") in _ACCOUNT_CODES
        or _ACCOUNT_MESSAGES.match(error_message(body, secrets) or "")
    ):
        return BackendFailed(
            reason="The provider refuses the account of the gateway's key: it is out of credit,"
            " over its spend limit, or disabled."
        )
    if isinstance(error, dict) and error.get("type") == _CONTEXT_EXCEEDED:
        return ProviderRejected(_context_exceeded(error))
    return ProviderRejected(error_message(body, secrets))


def _context_exceeded(error: dict[str, Any]) -> str:
    """Without llama.cpp's advice to the server's operator."""
    prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
    if type(prompt) is int and type(context) is int:
        return f"The prompt has {prompt} tokens, and the model's context has room for {context}."
    return "The prompt does not fit into the model's context."


def _failed(message: str, status: int) -> BackendFailed:
    rule = _RULE_BY_STATUS.get(status, _UNKNOWN_STATUS_RULE)
    if rule.may_have_run:
        message += f": the call {rule.reason}"
    return BackendFailed(
        f"{message}.",
        charged=rule.may_have_run,
        # Clients can provoke most of these, so they don't count against the replica.
        may_be_client_fault=400 <= status < 500,
    )


def retry_after_s(value: bytes | None) -> int:
    """From 1 to 120. A default without a number of seconds."""
    if value is None or not value.isdigit() or len(value) > 20:
        return RETRY_AFTER_S_DEFAULT
    return min(max(1, int(value)), RETRY_AFTER_S_MAX)


def refuses_the_key(body: Any) -> bool:
    """The gateway's. Google answers 400 to that."""
    return any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(body))


def _retry_delay(body: Any) -> bytes | None:
    """In whole seconds, rounded up, from Google's error details, as in a Retry-After header."""
    for detail in _details(body):
        delay = detail.get("retryDelay")
        seconds = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
        if seconds is not None:
            return b"%d" % (int(seconds[1]) + bool(seconds[2].strip(".0")))
    return None


def _details(body: Any) -> list[dict[str, Any]]:
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    if not isinstance(details, list):
        return []
    return [detail for detail in details if isinstance(detail, dict)]


def error_message(body: Any, secrets: tuple[str, ...]) -> str | None:
    """Without secrets, addresses and control characters. In `error.message` or, at AWS,
    `message`."""
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str):
        return None
    # First, because one inside a secret would hide it from the search below.
    message = _INVISIBLE.sub(" ", message)
    message = _ADDRESS.sub(_REMOVED, message)
    for secret in secrets:
        message = message.replace(secret, _REMOVED)
    shown = message.strip().encode("utf-8", "replace")[:_MESSAGE_BYTES_MAX]
    return shown.decode("utf-8", "ignore") or None


def _parsed(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
