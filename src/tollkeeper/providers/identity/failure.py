"""The error for a token that couldn't be obtained. Its message contains no secrets."""

import logging
import re
import traceback

_SHOWN_LENGTH_MAX = 300
# Only these published codes of a token service's answer are shown: other text may quote what the
# gateway sent.
_CODES = re.compile(
    r"\b(AADSTS[0-9]{4,9}|access_denied|invalid_client|invalid_grant|invalid_request|invalid_scope"
    r"|invalid_target|temporarily_unavailable|unauthorized_client|unsupported_grant_type)\b"
)


class IdentityFailure(Exception):
    """No token, or something needed to ask for one is missing, such as a file. The message is for
    operators (log and `doctor`); clients see another."""


def silence(*loggers: str) -> None:
    """A library's log lines may quote the token service's answer. `renewal` logs each failure."""
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def as_identity_failure(
    error: Exception, *, local_errors: tuple[type[Exception], ...] = ()
) -> IdentityFailure:
    """Shows only messages of `local_errors`, which contain no text from the token service."""
    # They refer to connections and secrets.
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
