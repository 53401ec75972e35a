"""Turns refusals into errors for clients, and remembers those that stand for a while."""

import time
from datetime import UTC, datetime

from tollkeeper.core.access import ProjectId
from tollkeeper.core.errors import (
    PaymentRequired,
    PermissionDenied,
    RateLimited,
    TollkeeperError,
    Unauthenticated,
)
from tollkeeper.core.money import usd_from_picousd
from tollkeeper.core.runtime.minute_rate import NS_PER_S, MinuteRate
from tollkeeper.money.caps.rule import CAP_ADJECTIVES
from tollkeeper.money.holds.rule import Decision, Refusal

# Beyond this many rejections without a hold, one process rejects the project's calls unread. They
# don't count against its rate limit, so they need a limit too.
REFUSED_CALLS_PER_MINUTE = 6000
_REMEMBERED_S_MAX = 1.0
_PROJECTS_MAX = 10_000
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
    """When a daily, weekly or monthly cap starts again from zero; "" for other refusals."""
    if decision.resets_at is None:
        return ""
    at = datetime.fromtimestamp(decision.resets_at, UTC).isoformat().replace("+00:00", "Z")
    return f" The next {decision.period} begins at {at}."


class StandingRefusals:
    """Rejects a project's calls without reading bodies or accounts, for a short time, once its rate
    is used up or too many were rejected otherwise. An empty bucket is remembered for a second at
    most, so a higher limit takes effect by then."""

    def __init__(self) -> None:
        # By the monotonic clock.
        self.until = 0.0
        self._refusals: dict[ProjectId, tuple[float, Decision]] = {}
        self._refused_calls = MinuteRate(REFUSED_CALLS_PER_MINUTE)

    def note(self, project_id: ProjectId, decision: Decision) -> None:
        # 0 if it wasn't the rate limit.
        if decision.wait_us:
            if len(self._refusals) >= _PROJECTS_MAX:
                self._refusals.clear()
            now = time.monotonic()
            until = now + min(decision.wait_us / 1e6, _REMEMBERED_S_MAX)
            self._refusals[project_id] = (until, decision)
            self.until = now + _EFFECTIVE_S_MAX

    def count_refused(self, project_id: ProjectId) -> None:
        """Rejected before anything was held. The rate limit doesn't count these, so a client could
        otherwise send any number."""
        self._refused_calls.use(project_id)
        self.until = time.monotonic() + _EFFECTIVE_S_MAX

    def find(self, project_id: ProjectId) -> TollkeeperError | None:
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
