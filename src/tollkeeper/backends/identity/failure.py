"""Explains why a token was not obtained, without secrets."""

import logging
import re
import traceback

_SHOWN_LENGTH_MAX = 300
# Published error codes. They are the only part of a token service's answer that is shown: the rest
# may quote data that the gateway sent.
_CODES = re.compile(
    r"\b(AADSTS[0-9]{4,9}|access_denied|invalid_client|invalid_grant|invalid_request|invalid_scope"
    r"|invalid_target|temporarily_unavailable|unauthorized_client|unsupported_grant_type)\b"
)


class IdentityFailure(Exception):
    """The token service did not return a token, or a requirement for asking it is missing.

    The message is for the operator's log and for `doctor`. Clients see another one.
    """


def silence(*loggers: str) -> None:
    """Disables a library's log, because its lines may quote a token service's answer. `renewal`
    logs each failure itself."""
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def failed(error: Exception, *, local: tuple[type[Exception], ...] = ()) -> IdentityFailure:
    """Converts an exception of a provider's library. Shows the messages of the types in `local`,
    because only these contain no text from the token service."""
    # The traceback's frames contain connections and secrets.
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, local):
        text = " ".join(str(error.args[0] if error.args else error).split())
        return IdentityFailure(text[:_SHOWN_LENGTH_MAX])
    code = _CODES.search(str(error))
    return IdentityFailure(
        f"the token service refused: {code[0]}"
        if code
        else f"the provider's library raised {type(error).__name__}"
    )
