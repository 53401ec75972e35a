"""Defines errors by their meaning. The API's error table, not this module, maps them to HTTP
statuses.

TollkeeperError
├── InvalidRequest            the caller's input breaks a rule
├── Unauthenticated           no valid API key
├── PermissionDenied          the API key lacks the permission
├── PolicyDenied              an enforcing policy matched
├── NotFound                  does not exist, or belongs to another organization
│   └── ModelNotFound
├── Conflict
│   ├── RevisionConflict      an edit named a stale revision
│   ├── StateConflict         the resource's state forbids the operation
│   └── IdempotencyConflict   the Idempotency-Key was used for another request, or its first
│                             request is still running
├── PaymentRequired           credit or cap cannot cover the call
├── RateLimited               too many requests, or too many at once
├── ProviderRejected          the backend refused the request's content
├── OptionUnsupported         the backend does not implement an option
├── BackendFailed             the backend did not answer properly
├── Unavailable               a required service or setting is missing
└── DeadlineExceeded          the call took too long
"""

import re

# A backend may ask for more.
RETRY_AFTER_S_MAX = 120


_RECORDED_MESSAGE_MAX = 500
_RECORDED_PARAM_MAX = 200
# Quotations may be text of the client. Greedy, because quoted text may contain quotes. Backticks quote types,
# and in two messages of msgspec a field's name.
_QUOTED = re.compile(r"(?<!\w)(['\"]).*['\"]|(?<=field )`.*`", re.DOTALL)
# A name, for example of a model. Prompts contain spaces.
_QUOTED_NAME = re.compile(r"['\"`][\w.:/@+-]{1,64}['\"`]", re.ASCII)
_PLACE = re.compile(r"[\w.\[\]-]*", re.ASCII)


def without_quotations(message: str) -> str:
    """In one line, without quotations that may be content of a request, so that it may be logged and
    stored."""
    text = _QUOTED.sub(_name_or_ellipsis, message)
    return " ".join(text.encode("utf-8", "replace").decode().split())[:_RECORDED_MESSAGE_MAX]


def _name_or_ellipsis(quotation: re.Match[str]) -> str:
    return quotation[0] if _QUOTED_NAME.fullmatch(quotation[0]) else "\u2026"


class TollkeeperError(Exception):
    """The operation was refused or failed."""

    # The backend bills no tokens of the failed answer, even if output was received.
    tokens_are_free = False
    # The backend itself ended the incomplete answer without an error, so its last usage report is its bill.
    backend_ended_answer = False

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        charged: bool = False,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.param = param
        self.retry_after_s = retry_after_s
        # The backend may have charged, so an automatic retry could cost twice.
        self.charged = charged
        super().__init__(self.message)

    @property
    def reason(self) -> str:
        """For logs and the database: no text of a provider, which may quote the prompt, and no quotation of
        the request."""
        return without_quotations(self.message)

    @property
    def place(self) -> str | None:
        """`param` for logs and the database, cut where a property's name may be text of the client."""
        if self.param is None:
            return None
        match = _PLACE.match(self.param[:_RECORDED_PARAM_MAX])
        assert match is not None
        return match[0] if match[0] == self.param else match[0] + "\u2026"


class InvalidRequest(TollkeeperError):
    """The request is not valid."""


class Unauthenticated(TollkeeperError):
    """A valid API key is required."""


class PermissionDenied(TollkeeperError):
    """The credential does not allow this operation."""


class PolicyDenied(TollkeeperError):
    """A policy of the organization denied this operation."""


class NotFound(TollkeeperError):
    """There is no such resource."""


class ModelNotFound(NotFound):
    """There is no such model."""


class Conflict(TollkeeperError):
    """The operation conflicts with the state of the resource."""


class RevisionConflict(Conflict):
    """The revision is not the current one."""


class StateConflict(Conflict):
    """The resource's state does not allow this."""


class IdempotencyConflict(Conflict):
    """This Idempotency-Key was used for another request."""


class PaymentRequired(TollkeeperError):
    """Available credit or spending cap cannot cover this call."""


class RateLimited(TollkeeperError):
    """Too many requests."""


class ProviderRejected(TollkeeperError):
    """The backend refused the request."""

    @property
    def reason(self) -> str:
        return "The backend refused the request."


class OptionUnsupported(TollkeeperError):
    """The model's backend does not implement this option."""


class BackendFailed(TollkeeperError):
    """The backend request failed."""

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after_s: int | None = None,
        charged: bool = False,
        may_be_client_fault: bool = False,
        reason: str = "",
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, charged=charged)
        self._reason = reason
        # Then it doesn't count against the health of the replica.
        self.may_be_client_fault = may_be_client_fault

    @property
    def reason(self) -> str:
        """Only operators may know more than the message."""
        return self._reason or self.message


class Unavailable(TollkeeperError):
    """A required service is unavailable."""


class DeadlineExceeded(TollkeeperError):
    """The inference deadline was exceeded."""
