"""Reads the answer of a service that gives access tokens."""

from typing import Any

from tollkeeper.backends.credentials import is_header_text
from tollkeeper.backends.identity.failure import IdentityFailure
from tollkeeper.backends.identity.renewal import Expiring
from tollkeeper.backends.identity.token_service import TokenAnswer, check_success

# Where a service does not say for how long.
_LIFETIME_S_DEFAULT = 300.0
_LIFETIME_S_MAX = 86400.0


def read_access_token(answer: TokenAnswer) -> Expiring[str]:
    """Raises IdentityFailure."""
    check_success(answer)
    told = answer.json()
    token = told.get("access_token")
    if not isinstance(token, str) or not is_header_text(token):
        raise IdentityFailure("the token service's answer has no access token")
    return Expiring(token, _lifetime(told.get("expires_in")))


def _lifetime(seconds: Any) -> float:
    """Azure's machines write the number as text."""
    if isinstance(seconds, str) and seconds.isdigit() and len(seconds) <= 9:
        seconds = int(seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return _LIFETIME_S_DEFAULT
    return min(float(seconds), _LIFETIME_S_MAX)
