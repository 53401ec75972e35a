from datetime import UTC, datetime

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
