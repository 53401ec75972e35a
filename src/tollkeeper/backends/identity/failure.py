"""Why a token was not obtained, in words that hold no secret."""


class IdentityFailure(Exception):
    """The service that gives tokens did not give one, or what is needed to ask it is not there.

    The message is for the operator's log and for `doctor`. Callers see another one."""
