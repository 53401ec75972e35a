"""Defines the error for a token that could not be obtained. Its message contains no secrets."""

import logging
import re
import traceback

_SHOWN_LENGTH_MAX = 300
# The published error codes of token services. Only these codes are shown from a token service's
# answer, because other text may quote data that the gateway sent.
_CODES = re.compile(
    r"\b(AADSTS[0-9]{4,9}|access_denied|invalid_client|invalid_grant|invalid_request|invalid_scope"
    r"|invalid_target|temporarily_unavailable|unauthorized_client|unsupported_grant_type)\b"
)


class IdentityFailure(Exception):
    """The token service did not return a token, or the gateway lacks something that it needs to ask
    for a token, for example a file.

    The message is for operators: in the log, and in the command `doctor`. Clients see another message.
    """


def silence(*loggers: str) -> None:
    """Disables these loggers of a library, because their lines may quote the answer of a token
    service. `renewal` logs each failure."""
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def as_identity_failure(
    error: Exception, *, local_errors: tuple[type[Exception], ...] = ()
) -> IdentityFailure:
    """Converts an exception of a provider's library. The messages of exceptions of the types in
    `local_errors` are shown, because these messages contain no text from the token service. The messages of
    other exceptions are not shown."""
    # The frames of the traceback refer to connections and secrets, so they are cleared.
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, local_errors):
        text = " ".join(str(error.args[0] if error.args else error).split())
        return IdentityFailure(text[:_SHOWN_LENGTH_MAX])
    code = _CODES.search(str(error))
    return IdentityFailure(
        f"the token service refused: {code[0]}"
        if code
        else f"the provider's library raised {type(error).__name__}"
    )
