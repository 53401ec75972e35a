"""What a backend's refusals mean to us, and how little of their words a caller may see."""

import re
from typing import Any

import msgspec

from tollkeeper.domain.errors import (
    RETRY_AFTER_S_MAX,
    BackendFailed,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)

RETRY_AFTER_S_DEFAULT = 5
# The published words for what is wrong with a request, in the place of a status.
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
_RATE_LIMITED = "rate_limit_exceeded"
_MESSAGE_BYTES_MAX = 2048
_REMOVED = "[removed]"
# Control characters, and the invisible ones that turn the direction of text around.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>]*", re.IGNORECASE)


def refusal(
    status: int, body: bytes, *, retry_after: bytes | None, secrets: tuple[str, ...]
) -> TollkeeperError:
    """The error for an answer that is not 200. None of them can have been charged."""
    if status in {400, 422}:
        return ProviderRejected(error_message(_parsed(body), secrets))
    if status == 429:
        return RateLimited(
            "The backend is handling too many requests.", retry_after_s=retry_after_s(retry_after)
        )
    return BackendFailed(f"The backend answered with status {status}.")


def refusal_record(record: Any, *, secrets: tuple[str, ...]) -> TollkeeperError:
    """The error for an error object where the answer should have begun. Some servers send their
    200 before they look at the request, so the status they mean is inside, or a word for it."""
    code = record.get("code") if isinstance(record, dict) else None
    word = code if isinstance(code, str) else None
    if code in (400, 422) or word in _REJECTED:  # A tuple, because the code may be anything.
        return ProviderRejected(error_message({"error": record}, secrets))
    if code == 429 or word == _RATE_LIMITED:
        return RateLimited(
            "The backend is handling too many requests.", retry_after_s=RETRY_AFTER_S_DEFAULT
        )
    return BackendFailed("The backend answered with an error.")


def retry_after_s(value: bytes | None) -> int:
    """Seconds from the header, within 1 to 120; a default where it is no count of seconds."""
    if value is None or not value.isdigit() or len(value) > 20:
        return RETRY_AFTER_S_DEFAULT
    return min(max(1, int(value)), RETRY_AFTER_S_MAX)


def error_message(body: Any, secrets: tuple[str, ...]) -> str | None:
    """`error.message` made fit to show, or None where there is nothing to show."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str):
        return None
    # A secret may be broken up by control characters, so these go first.
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
