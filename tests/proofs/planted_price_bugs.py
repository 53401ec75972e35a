"""More bugs that are planted: reports in dialects, prices that depend on the call, overage. A table."""

from tests.proofs.bug import Bug
from tests.proofs.planted_bugs import ADMISSION

PRICING = "domain/pricing.py"
CATALOG = "domain/catalog.py"
DECLARED = "domain/declared_prices.py"
USAGE = "domain/usage.py"
CALL_HISTORIES = ("proofs/test_call_histories.py",)
PRICES = ("domain/test_declared_prices.py",)
EXCHANGES = ("journeys/exchanges/test_exchanges.py",)
PRICED_EXCHANGES = ("journeys/exchanges/test_priced_exchanges.py",)
OVERAGE = ("services/ledger/test_overage.py",)

PRICE_BUGS = {
    # What providers do, over whole calls.
    "the first of cumulative reports is charged": Bug(
        "domain/metering.py",
        "            self.report = merged(self.report, event.usage)\n",
        "            self.report = self.report or event.usage\n",
        CALL_HISTORIES,
    ),
    "reasoning that only the total shows is not charged": Bug(
        USAGE,
        "    if total is not None and total != prompt + completion:\n",
        "    if total is not None and total > 16 * (prompt + completion):\n",
        CALL_HISTORIES,
    ),
    "a call that was cut after its head is released": Bug(
        "services/calls/inference.py",
        "        elif error.charged:\n",
        "        elif error.charged and running.abandoned:\n",
        CALL_HISTORIES,
    ),
    "a proxy that lost the answer is taken for a refusal": Bug(
        "backends/refusals.py",
        "StatusRule((502, 520), True,",
        "StatusRule((502, 520), False,",
        CALL_HISTORIES,
    ),
    "a fan-out is priced as one answer": Bug(
        "backends/fan_out.py",
        "        parts=tuple(known),\n",
        "        parts=None,\n",
        CALL_HISTORIES,
    ),
    "a fan-out with one failed part is released": Bug(
        "backends/fan_out.py",
        "        failure.charged = self._produced or any(map(_may_have_been_charged, self._workers))\n",
        "        failure.charged = all(map(_may_have_been_charged, self._workers))\n",
        CALL_HISTORIES,
    ),
    "a call has the prices of its end": Bug(
        "services/ledger/admission.py",
        "        pricing = reservation.prices.get(backend, hold.pricing)\n",
        "        pricing = self._last.pricing_at(self._clock())\n",
        CALL_HISTORIES,
        also=(
            (
                "        now = self._clock()\n",
                "        now, self._last = self._clock(), call.model\n",
            ),
        ),
    ),
    "the cache split of an earlier report is lost": Bug(
        USAGE,
        "    if earlier is None:\n        return later\n",
        "    if earlier is None or later.prompt_tokens is not None:\n        return later\n",
        CALL_HISTORIES,
    ),
    # Dialects.
    "searches among the output of Responses are not charged": Bug(
        "backends/responses/usage.py",
        "        web_searches=searches_in_output if searches is None else searches,\n",
        "        web_searches=searches,\n",
        EXCHANGES,
    ),
    "what a proxy repeats of cache writes is charged as input": Bug(
        "backends/chat/usage.py",
        "        inside_written = top_written\n",
        "        inside_written = None\n",
        ("backends/chat/test_usage.py",),
    ),
    "audio that only the total has is charged as output": Bug(
        "backends/chat/usage.py",
        "    if unheard:\n",
        "    if unheard is None:\n",
        ("backends/chat/test_usage.py",),
    ),
    "the tier in Gemini's report is not read": Bug(
        "backends/gemini/usage.py",
        "        service_tier=_service_tier(reported),\n",
        "",
        ("backends/gemini/test_usage.py",),
    ),
    "a prompt that is read again after each search is held once": Bug(
        "services/calls/inference.py",
        "size.hold_bound(call.model, counted) if size.searches_web else prompt_tokens\n",
        "prompt_tokens\n",
        EXCHANGES,
    ),
    "an empty id of DashScope goes to the caller": Bug(
        "backends/chat/answer.py",
        "ToolCallPiece(index, piece.id or None, name,",
        "ToolCallPiece(index, piece.id, name,",
        EXCHANGES,
    ),
    "the thinking of Mistral is lost": Bug(
        "backends/chat/answer.py",
        """        reasoning = reasoning or "".join(_thought(part) for part in content)\n""",
        "",
        EXCHANGES,
    ),
    # Prices that depend on the call.
    "what a cache has does not count for the length of a prompt": Bug(
        PRICING,
        "        return _cost_at(pricing.applying(usage.service_tier, usage.prompt_tokens),",
        "        return _cost_at(pricing.applying(usage.service_tier, usage.uncached_tokens),",
        PRICES,
    ),
    "a tier begins one token early": Bug(
        DECLARED,
        "        found[tier.above_tokens + 1] = pricing_from_declared(\n",
        "        found[tier.above_tokens] = pricing_from_declared(\n",
        PRICES,
    ),
    "a hold forgets the tiers": Bug(
        CATALOG,
        "                if variant.from_tokens <= prompt_tokens\n",
        "                if variant.from_tokens == 0\n",
        PRICES,
    ),
    "a hold takes the cheapest price": Bug(
        PRICING,
        "    return max(possible, key=",
        "    return min(possible, key=",
        PRICES,
    ),
    "a tier of service that is not declared is free of its tiers": Bug(
        CATALOG,
        "        return other_name if other_name in declared else None\n",
        "        return service_tier\n",
        CALL_HISTORIES,
    ),
    "the tier that was asked for is charged": Bug(
        "backends/chat/stream.py",
        "        self._service_tier = chunk.service_tier or self._service_tier\n",
        "        self._service_tier = self._service_tier or chunk.service_tier\n",
        PRICED_EXCHANGES,
    ),
    "a multiplier is rounded": Bug(
        DECLARED,
        "        if rest:\n",
        "        if rest < 0:\n",
        PRICES,
    ),
    "audio from a cache is charged twice": Bug(
        USAGE,
        "(report.input_audio_tokens or 0) - (report.cached_audio_tokens or 0))",
        "(report.input_audio_tokens or 0))",
        PRICED_EXCHANGES,
    ),
    "audio is not held for": Bug(
        PRICING,
        "        + input_audio * bounds.input_audio_tokens\n",
        "",
        PRICES,
    ),
    "a price change is valid a second late": Bug(
        CATALOG,
        "            if change.valid_from <= now:\n",
        "            if change.valid_from < now:\n",
        ("settings/test_settings.py",),
    ),
    "a price change is ignored by holds": Bug(
        "services/ledger/admission.py",
        "        now = self._clock()\n",
        "        now = 0\n",
        ("journeys/calls/test_prices.py",),
    ),
    # Overage.
    "new credit ends a stop": Bug(
        ADMISSION,
        "stopped=state.stopped or state.is_below_bound,",
        "stopped=state.is_below_bound,",
        ("domain/test_overage_bound.py",),
    ),
    "an organization beyond its bound is admitted": Bug(
        ADMISSION,
        "    if state.stopped:\n",
        "    if state.stopped and state.available_picousd < 0:\n",
        ("domain/test_overage_bound.py",),
    ),
    "a running call counts as debt": Bug(
        ADMISSION,
        "        return self.available_picousd + spend.held_picousd + spend.unsettled_picousd\n",
        "        return self.available_picousd + spend.unsettled_picousd\n",
        ("domain/test_overage_bound.py",),
    ),
    "a stop is not written": Bug(
        "storage/ledger.py",
        "month_settled = v.month_settled, stopped = v.stopped,\n",
        "month_settled = v.month_settled,\n",
        OVERAGE,
    ),
    # Bounds.
    "pages that a priced search finds are not held for": Bug(
        "domain/prompt_size.py",
        "            (self.web_searches, bounds.web_search),\n",
        "            (0 if model.pricing.web_search else self.web_searches, bounds.web_search),\n",
        ("domain/test_prompt_size.py",),
    ),
    "a truncation asks the tokenizer for each halving": Bug(
        "api/responses/truncation.py",
        "_COUNTS_MAX = 4\n",
        "_COUNTS_MAX = 100\n",
        ("api/responses/test_truncation.py",),
        also=(
            (
                "        return min(self._fitting_cut(self._fewest, self.best), self.best - 1)\n",
                "        return (self._fewest + self.best) // 2\n",
            ),
        ),
    ),
}
