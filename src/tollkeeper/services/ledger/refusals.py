"""Turns refused admissions into errors for clients, and remembers those that stand for a while."""

import time
from datetime import UTC, datetime

from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.admission import Decision, Refusal
from tollkeeper.domain.caps import CAP_ADJECTIVES
from tollkeeper.domain.errors import (
    PaymentRequired,
    PermissionDenied,
    RateLimited,
    TollkeeperError,
    Unauthenticated,
)
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.services.minute_rate import NS_PER_S, MinuteRate

# If one process rejects more calls of a project per minute than this without a hold, it rejects the
# project's further calls unread. Rejected calls need this limit, because they do not count against
# the project's rate limit.
REFUSED_CALLS_PER_MINUTE = 6000
_REMEMBERED_S_MAX = 1.0
_PROJECTS_MAX = 10_000
# After this time, a refusal has no effect on further calls.
_EFFECTIVE_S_MAX = 60.0


def refusal_error(decision: Decision) -> TollkeeperError:
    match decision.refusal:
        case Refusal.KEY_NOT_ACTIVE:
            return Unauthenticated(f"This API key is {decision.key_status or 'not valid'}.")
        case Refusal.PROJECT_ARCHIVED:
            return Unauthenticated("The project of this API key is archived.")
        case Refusal.MODEL_NOT_ALLOWED:
            return PermissionDenied(
                "This API key or its project has a list of models that does not allow this model.",
                param="model",
            )
        case Refusal.OVERAGE:
            return PaymentRequired(
                "The organization's calls are stopped, because its balance fell below "
                f"{usd_from_picousd(-decision.limit)} USD; the balance is now "
                f"{usd_from_picousd(decision.available_picousd)} USD. Only the operator of the "
                "service can allow calls again."
            )
        case Refusal.RATE:
            return RateLimited(
                f"The project's limit of {decision.limit} requests per minute is reached.",
                retry_after_s=decision.retry_after_s,
            )
        case Refusal.CONCURRENCY:
            return RateLimited(
                f"The project's limit of {decision.limit} concurrent requests is reached.",
                retry_after_s=decision.retry_after_s,
            )
    return PaymentRequired(_not_enough_money(decision), retry_after_s=decision.retry_after_s)


_OWNERS = {
    Refusal.ORGANIZATION_CAP: "organization",
    Refusal.PROJECT_CAP: "project",
    Refusal.KEY_CAP: "API key",
}
_RETRY_HINT = " Running calls hold part of the amount: this call may fit when they are settled."


def _not_enough_money(decision: Decision) -> str:
    assert decision.refusal is not None
    subject, cap = "The organization's credit", ""
    if decision.refusal is Refusal.OVERAGE_IN_FLIGHT:
        subject = "The organization's credit and its overage bound"
        cap = f", bound {usd_from_picousd(decision.limit)}"
    elif decision.refusal is not Refusal.CREDIT:
        assert decision.period is not None
        adjective = CAP_ADJECTIVES[decision.period]
        subject = f"The {_OWNERS[decision.refusal]}'s {adjective} spending cap"
        cap = f", cap {usd_from_picousd(decision.limit)}"
    retry_hint = "" if decision.retry_after_s is None else _RETRY_HINT
    return (
        f"{subject} cannot cover this call: needed {usd_from_picousd(decision.needed_picousd)}, "
        f"available {usd_from_picousd(decision.available_picousd)}, "
        f"held {usd_from_picousd(decision.held_picousd)}, "
        f"spent {usd_from_picousd(decision.spent_picousd)}{cap} USD.{retry_hint}{_reset(decision)}"
    )


def _reset(decision: Decision) -> str:
    """Returns the sentence that names the time when a daily, weekly or monthly cap starts again
    from zero, or "" for other refusals."""
    if decision.resets_at is None:
        return ""
    at = datetime.fromtimestamp(decision.resets_at, UTC).isoformat().replace("+00:00", "Z")
    return f" The next {decision.period} begins at {at}."


class StandingRefusals:
    """Remembers which projects' calls this process rejects without reading their bodies and without
    their accounts: for a short time, calls of a project that has used up its request rate, and calls of a
    project of which too many calls were rejected for other reasons.

    A project's token bucket stays empty until its next refill. Such a refusal is remembered for one second
    at most, so that a higher limit takes effect within that second.
    """

    def __init__(self) -> None:
        # The time of the monotonic clock until which `find` may return an error.
        self.until = 0.0
        self._refusals: dict[ProjectId, tuple[float, Decision]] = {}
        self._refused_calls = MinuteRate(REFUSED_CALLS_PER_MINUTE)

    def note(self, project_id: ProjectId, decision: Decision) -> None:
        # `wait_us` is 0 if the rate limit was not the reason for the refusal.
        if decision.wait_us:
            if len(self._refusals) >= _PROJECTS_MAX:
                self._refusals.clear()
            now = time.monotonic()
            until = now + min(decision.wait_us / 1e6, _REMEMBERED_S_MAX)
            self._refusals[project_id] = (until, decision)
            self.until = now + _EFFECTIVE_S_MAX

    def count_refused(self, project_id: ProjectId) -> None:
        """Counts a call that was rejected before anything was held for it. The ledger's rate limit
        does not count such a call, so a client could otherwise send any number of them."""
        self._refused_calls.use(project_id)
        self.until = time.monotonic() + _EFFECTIVE_S_MAX

    def find(self, project_id: ProjectId) -> TollkeeperError | None:
        """Returns the error for the project's calls if this process remembers that the project has
        used up its rate limit, or if this process has rejected too many calls of the project for
        other reasons."""
        until, decision = self._refusals.get(project_id, (0.0, None))
        if decision is not None:
            if time.monotonic() < until:
                return refusal_error(decision)
            del self._refusals[project_id]
        wait_ns = self._refused_calls.wait_ns(project_id)
        if wait_ns:
            return RateLimited(
                f"{REFUSED_CALLS_PER_MINUTE} calls of the project were refused within a minute. "
                "Further calls are refused without being read.",
                retry_after_s=-(-wait_ns // NS_PER_S),
            )
        return None
