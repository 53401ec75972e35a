"""What a backend's refusals mean to us, and how little of their words a caller may see."""

import re
from typing import Any

import msgspec

from tollkeeper.domain.errors import (
    BackendFailed,
    ProviderRejected,
    RateLimited,
    TollkeeperError,
)

RETRY_AFTER_S_DEFAULT = 5
RETRY_AFTER_S_MAX = 120
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
    200 before they look at the request, so the status they mean is inside."""
    code = record.get("code") if isinstance(record, dict) else None
    if code in (400, 422):  # A tuple, because the code may be anything.
        return ProviderRejected(error_message({"error": record}, secrets))
    if code == 429:
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
