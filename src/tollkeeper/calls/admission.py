"""Connects calls with the ledger: holds the maximum cost before a call is sent, and resolves the
hold exactly once when it has ended."""

import asyncio
from uuid import UUID

from msgspec import convert

from tollkeeper.calls.tab import Tab
from tollkeeper.core.inference import Call
from tollkeeper.core.pricing import Bounds, cost_of
from tollkeeper.core.prompt_size import PromptSize, measure_prompt, prompt_text
from tollkeeper.core.runtime.clock import Clock, unix_now
from tollkeeper.core.runtime.large_requests import run_in_thread
from tollkeeper.core.usage import Usage
from tollkeeper.money.holds.ledger import Ledger
from tollkeeper.money.holds.refusal_errors import StandingRefusals, refusal_error
from tollkeeper.money.holds.values import Hold, Resolution, ResolutionKind
from tollkeeper.money.overage.rule import Excess, overage_observed

_RESOLVED_BY_CALL = "call"
# Reading this from the enum takes six times as long.
_SETTLED = ResolutionKind.SETTLED
# In characters: measuring longer texts takes more than a few milliseconds.
_LONG_ASCII_TEXT = 128 << 10
_LONG_NON_ASCII_TEXT = 8 << 10


async def measure(call: Call) -> PromptSize:
    """Measures long text in a thread."""
    prompt, bounds = call.prompt, call.model.token_bounds
    if not call.is_large:
        text = prompt_text(prompt)
        if len(text) <= _LONG_NON_ASCII_TEXT or (len(text) <= _LONG_ASCII_TEXT and text.isascii()):
            return measure_prompt(prompt, bounds, text)
    return await run_in_thread(call.organization_id.int, measure_prompt, prompt, bounds)


class Admission:
    def __init__(self, ledger: Ledger, clock: Clock = unix_now) -> None:
        self._ledger = ledger
        self._excesses = ledger.excesses
        self._clock = clock
        # The API asks it before reading a body.
        self.standing_refusals = StandingRefusals()

    async def hold(self, tab: Tab, counted: int | None) -> None:
        """Holds the maximum cost at current prices; it's committed on return. `counted` is a
        tokenizer's count, if any. Also tells the meter the prompt's size. Remembers a refusal
        because of the rate."""
        call = tab.call
        plan = tab.plan
        size = await measure(call)
        prices = plan.fixed_prices or plan.prices_at(self._clock())
        is_plain = (
            size.is_text_only
            and call.choices == 1
            and not (call.prompt.options or plan.has_special_bounds)
        )
        if is_plain:
            tab.meter.prompt_tokens = size.likely_tokens(plan.model, counted)
            bounds = Bounds(size.bound(plan.model, counted), 1, call.output_tokens_max)
        else:
            bounds = _special_bounds(tab, size, counted)
        pricing, amount = prices.hold(bounds)
        overage_max = fee = 0
        if not is_plain:
            overage_max = tab.declared_overage_picousd = prices.overage_max(bounds, amount)
        tab.prices = prices.by_backend
        if call.prompt.tools and (fee := plan.tool_fee(call.prompt)):
            amount += fee
            pricing = pricing.with_fee(fee)
            tab.prices = {
                backend: backend_pricing.with_fee(fee)
                for backend, backend_pricing in prices.by_backend.items()
            }
        if not self._excesses.is_quiet and (
            cases := await self._excesses.expected_of(call.model.id)
        ):
            cost_max = prices.cost_max(bounds) + fee
            observed = overage_observed(cases, amount, cost_max, self._clock())
            overage_max = max(overage_max, observed)
        hold = Hold(
            call.project_id,
            call.key_id,
            amount,
            overage_max,
            call.model.id,
            organization_id=call.organization_id,
            id=convert(call.request_id, UUID),
            pricing=pricing,
            bounds=bounds,
            policy_ids=call.policy_ids,
        )
        decision = await self._ledger.hold(hold)
        if decision.refusal is not None:
            self.standing_refusals.note(call.project_id, decision)
            raise refusal_error(decision)
        if decision.policies is not None:
            tab.policies = decision.policies
        tab.hold = hold
        tab.hold_picousd = hold.hold_picousd

    def settle(self, tab: Tab, usage: Usage) -> tuple[int, asyncio.Future[bool]]:
        """Charges the usage at the prices of the serving backend. Returns the cost and a future for
        when it's durable. The ledger has the settlement before this returns, so it's written even
        if the call's task is cancelled."""
        hold = tab.hold
        assert hold is not None
        pricing = tab.prices.get(tab.backend or "", hold.pricing)
        # The prompt may have been sent less often than held for.
        cost = cost_of(pricing, usage, hold.bounds.images and _images_sent(tab, hold.bounds))
        total = sum(cost.values())
        excess = self._excess_of(tab, hold, total) if total > hold.hold_picousd else None
        resolution = Resolution(
            hold.organization_id,
            hold.id,
            _SETTLED,
            _RESOLVED_BY_CALL,
            estimated=usage.estimated,
            excess=excess,
            **cost,
        )
        return total, self._ledger.resolve(resolution, hold)

    def _excess_of(self, tab: Tab, hold: Hold, cost: int) -> Excess | None:
        """None if it's known already. What was declared is no excess: otherwise a tenant that
        searches a lot would take room from tenants of the same model who don't search."""
        if cost <= hold.hold_picousd + tab.declared_overage_picousd:
            return None
        case = Excess(hold.model, tab.backend_name, hold.hold_picousd, cost, self._clock())
        return case if self._excesses.is_news(case) else None

    def release(self, tab: Tab) -> asyncio.Future[bool]:
        """For a call that the backend doesn't charge. The future is done when it's durable."""
        hold = tab.hold
        assert hold is not None
        resolution = Resolution(
            hold.organization_id, hold.id, ResolutionKind.RELEASED, _RESOLVED_BY_CALL
        )
        return self._ledger.resolve(resolution, hold)

    def leave_unsettled(self, tab: Tab, reason: str) -> asyncio.Future[bool]:
        """Keeps the hold until an operator or a rule resolves it."""
        assert tab.hold is not None
        return self._ledger.mark_unsettled(tab.hold, reason)


def _special_bounds(tab: Tab, size: PromptSize, counted: int | None) -> Bounds:
    """For a call that may use more than its text and the output limit. Also sets the meter's prompt
    size."""
    call, plan, meter, model = tab.call, tab.plan, tab.meter, tab.plan.model
    size, prompts = size.sent_to(model), plan.backend.prompts_sent(call)
    counts_media = counted is not None and plan.backend.counts_media
    likely_tokens = size.likely_tokens(model, counted, counts_media=counts_media)
    meter.prompt_tokens, meter.prompts = prompts * likely_tokens, prompts
    meter.input_audio_tokens = prompts * size.audio_bound(model, likely_tokens)
    meter.prompt_is_counted = size.is_text_only or (counts_media and not size.web_searches)
    meter.prompt_is_guessed = size.has_likely_tokens
    # A tokenizer may count only text, so these add the tokens of media.
    prompt_tokens, output_tokens = size.bound(model, counted), call.output_tokens_held
    return Bounds(
        prompts * size.hold_bound(model, counted),
        call.choices,
        output_tokens,
        images=prompts * size.images,
        web_searches=prompts * size.web_searches,
        input_audio_tokens=prompts * size.audio_bound(model, prompt_tokens),
        output_audio_tokens_each=output_tokens if model.writes_audio else 0,
        writes_images=model.writes_images,
        prompts=prompts,
        service_tier=call.asked_service_tier,
    )


def _images_sent(tab: Tab, bounds: Bounds) -> int:
    return bounds.images // bounds.prompts * tab.meter.prompts
