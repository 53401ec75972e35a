"""What every inference call does with the ledger: reserve before it is dispatched, settle once after."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec.structs import replace

from tollkeeper.domain.access import OrganizationId, ProjectId
from tollkeeper.domain.admission import Decision, Refusal
from tollkeeper.domain.catalog import Pricing
from tollkeeper.domain.errors import (
    PaymentRequired,
    RateLimited,
    TollkeeperError,
    Unauthenticated,
)
from tollkeeper.domain.inference import Call
from tollkeeper.domain.ledger import Hold, Resolution, ResolutionKind
from tollkeeper.domain.money import usd_from_picousd
from tollkeeper.domain.months import id_of_text
from tollkeeper.domain.policy_set import PolicySet
from tollkeeper.domain.pricing import Bounds, cost_of, hold_picousd
from tollkeeper.domain.prompt_size import WEB_SEARCHES_SEEN_MAX
from tollkeeper.domain.routes import dearest_pricing, prices_by_backend
from tollkeeper.domain.usage import Usage
from tollkeeper.services.clock import Clock, unix_now
from tollkeeper.services.ledger.ledger import Ledger
from tollkeeper.services.ledger.standing_refusals import StandingRefusals
from tollkeeper.services.minute_rate import NS_PER_S, MinuteRate
from tollkeeper.timeouts import Alarm

_RESOLVED_BY_CALL = "call"
# Calls of one project that are refused before they are admitted, in one process. They take nothing
# from the rate of the project, so they need a limit of their own.
REFUSED_CALLS_PER_MINUTE = 6000


class Reservation(msgspec.Struct, frozen=True):
    """A committed hold, with the prices of the moment of its admission."""

    hold: Hold
    policies: PolicySet | None = None
    # The prices of each backend, where several may serve the call. The hold has the dearest.
    prices: dict[str, Pricing] = {}

    @property
    def id(self) -> UUID:
        return self.hold.id

    @property
    def organization_id(self) -> OrganizationId:
        return self.hold.organization_id

    @property
    def hold_picousd(self) -> int:
        return self.hold.hold_picousd


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What a call cost, including overage."""

    cost_picousd: int
    estimated: bool
    usage: Usage


class Admission:
    def __init__(self, ledger: Ledger, clock: Clock = unix_now) -> None:
        self._ledger = ledger
        self._clock = clock
        self._rates = StandingRefusals()
        self._refused_calls = MinuteRate(REFUSED_CALLS_PER_MINUTE)

    async def reserve(
        self,
        call: Call,
        bounds: Bounds,
        alarm: Alarm | None = None,
    ) -> Reservation:
        """Holds the upper bound of what the call can cost, by the prices of this moment. Raises
        where it is refused, with the numbers of the refusal in the message. A task that has an
        alarm for its waits gives it."""
        now = self._clock()
        pricing = dearest_pricing(call.model, now, bounds)
        prices = prices_by_backend(call.model, now)
        fee = _tool_fee(call)
        if fee:
            pricing = pricing.with_fee(fee)
            prices = {backend: each.with_fee(fee) for backend, each in prices.items()}
        amount = hold_picousd(pricing, bounds)
        hold = Hold(
            organization_id=call.organization_id,
            id=id_of_text(call.request_id),
            project_id=call.project_id,
            key_id=call.key_id,
            model=call.model.id,
            pricing=pricing,
            bounds=bounds,
            hold_picousd=amount,
            overage_max_picousd=_most(call, bounds, now) + fee - amount,
        )
        decision = await self._ledger.hold(hold, alarm)
        if decision.refusal is not None:
            self._rates.note(call.project_id, decision)
            raise refusal_error(decision)
        return Reservation(hold, decision.policies, prices)

    def note_refusal(self, project_id: ProjectId, decision: Decision) -> None:
        """Remembers how a request was refused that takes from the rate and holds no money."""
        self._rates.note(project_id, decision)

    def require_rate(self, project_id: ProjectId) -> None:
        """Raises where the project was refused by its rate so recently that it would be again, or was
        refused for other reasons too often."""
        decision = self._rates.standing_refusal(project_id)
        if decision is not None:
            raise refusal_error(decision)
        wait_ns = self._refused_calls.wait_ns(project_id)
        if wait_ns:
            raise RateLimited(
                f"{self._refused_calls.per_minute} calls of the project were refused within a minute. "
                "Further ones are not looked at.",
                retry_after_s=-(-wait_ns // NS_PER_S),
            )

    def count_refused(self, project_id: ProjectId) -> None:
        """Counts a call that was refused before anything was held for it. It takes nothing from the
        rate that the ledger keeps, and would be free without this."""
        self._refused_calls.use(project_id)

    async def settle(
        self,
        reservation: Reservation,
        usage: Usage,
        *,
        estimated: bool,
        parts: Sequence[Usage] = (),
        backend: str = "",
    ) -> Settlement:
        """Charges what was used, by the prices of the backend that served, and releases the rest of
        the hold. Durable when it returns."""
        hold = reservation.hold
        pricing = reservation.prices.get(backend, hold.pricing)
        cost = cost_of(pricing, usage, hold.bounds.images, parts)
        await self._ledger.resolve(
            Resolution(
                organization_id=reservation.organization_id,
                reservation_id=reservation.id,
                kind=ResolutionKind.SETTLED,
                resolved_by=_RESOLVED_BY_CALL,
                estimated=estimated,
                **cost.by_dimension,
            ),
            hold,
        )
        return Settlement(cost.total_picousd, estimated, usage)

    async def release(self, reservation: Reservation) -> None:
        """Releases the whole hold: nothing was charged."""
        await self._ledger.resolve(
            Resolution(
                organization_id=reservation.organization_id,
                reservation_id=reservation.id,
                kind=ResolutionKind.RELEASED,
                resolved_by=_RESOLVED_BY_CALL,
            ),
            reservation.hold,
        )

    async def leave_unsettled(self, reservation: Reservation, reason: str) -> None:
        """Keeps the hold of a call whose cost nobody knows, until somebody resolves it."""
        await self._ledger.mark_unsettled(reservation.hold, reason)


def _most(call: Call, bounds: Bounds, now: int) -> int:
    """The most that the call can cost, as far as the model's declaration goes: a full context for
    each prompt, the longest output, and more searches than any answer was seen to make. A backend
    may exceed the bounds of the hold; it cannot exceed the model."""
    model = call.model
    output_each = max(bounds.output_tokens_each, model.max_output_length)
    most = replace(
        bounds,
        prompt_tokens=max(bounds.prompt_tokens, bounds.prompts * model.context_length),
        output_tokens_each=output_each,
        output_audio_tokens_each=output_each if bounds.output_audio_tokens_each else 0,
        web_searches=max(bounds.web_searches, bounds.prompts * WEB_SEARCHES_SEEN_MAX),
    )
    return hold_picousd(dearest_pricing(model, now, most), most)


def _tool_fee(call: Call) -> int:
    """The price of the tools that the provider runs, which is due whether the model uses them or
    not: no report says how often it did."""
    prices = call.model.tool_prices
    if not prices or not call.prompt.tools:
        return 0
    return sum(prices.get(name, 0) for name, _ in call.prompt.provider_tools)


def refusal_error(decision: Decision) -> TollkeeperError:
    """The error for the caller, with the numbers that the decision was made on."""
    match decision.refusal:
        case Refusal.KEY_NOT_ACTIVE:
            return Unauthenticated(f"This API key is {decision.key_status or 'not valid'}.")
        case Refusal.PROJECT_ARCHIVED:
            return Unauthenticated("The project of this API key is archived.")
        case Refusal.OVERAGE:
            return PaymentRequired(
                "The organization's calls are stopped, because its balance fell below "
                f"{usd_from_picousd(-decision.limit)} USD; it is now "
                f"{usd_from_picousd(decision.available_picousd)} USD. The operator of the service "
                "has to clear this."
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
    return PaymentRequired(_arithmetic(decision), retry_after_s=decision.retry_after_s)


_OWNERS = {
    Refusal.ORGANIZATION_CAP: "organization",
    Refusal.PROJECT_CAP: "project",
    Refusal.KEY_CAP: "API key",
}
_WAITING = " Running calls hold the rest: it may fit when they are settled."


def _arithmetic(decision: Decision) -> str:
    assert decision.refusal is not None
    subject, cap = "The organization's credit", ""
    if decision.refusal is Refusal.OVERAGE_IN_FLIGHT:
        subject = "The organization's credit and its overage bound"
        cap = f", bound {usd_from_picousd(decision.limit)}"
    elif decision.refusal is not Refusal.CREDIT:
        by = "" if decision.period is None else f" by {decision.period}"
        subject = f"The {_OWNERS[decision.refusal]}'s spending cap{by}"
        cap = f", cap {usd_from_picousd(decision.limit)}"
    waiting = "" if decision.retry_after_s is None else _WAITING
    return (
        f"{subject} cannot cover this call: needed {usd_from_picousd(decision.needed_picousd)}, "
        f"available {usd_from_picousd(decision.available_picousd)}, "
        f"held {usd_from_picousd(decision.held_picousd)}, "
        f"spent {usd_from_picousd(decision.spent_picousd)}{cap} USD.{waiting}{_reset(decision)}"
    )


def _reset(decision: Decision) -> str:
    """When a cap by day, week or month counts from zero again."""
    if decision.resets_at is None:
        return ""
    at = datetime.fromtimestamp(decision.resets_at, UTC).isoformat().replace("+00:00", "Z")
    return f" The next {decision.period} begins at {at}."
