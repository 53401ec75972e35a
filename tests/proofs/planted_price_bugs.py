"""Lists planted bugs in usage dialects, conditional prices and overage, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

CALL_HISTORIES = ("proofs/test_call_histories.py",)
PRICES = ("domain/test_declared_prices.py",)
EXCHANGES = ("journeys/exchanges/test_exchanges.py",)
PRICED_EXCHANGES = ("journeys/exchanges/test_priced_exchanges.py",)
OVERAGE = ("services/ledger/test_overage.py",)
VERDICT_PRICES = ("journeys/policies/test_verdict_prices.py",)

PRICE_BUGS = {
    # Bugs in the prices of verdicts.
    "a verdict is charged twice": Bug(
        "_set_verdict_price",
        "hold.verdict_picousd * verdicts",
        "hold.verdict_picousd * verdicts * 2",
        VERDICT_PRICES,
    ),
    "verdicts are charged without a hold": Bug(
        "Hold.judged_by",
        "self.hold_picousd + price * verdicts",
        "self.hold_picousd",
        VERDICT_PRICES,
    ),
    "a denied request does not pay for its verdicts": Bug(
        "Admission.release",
        "cost = _set_verdict_price(tab, hold)",
        "cost = 0",
        VERDICT_PRICES,
    ),
    "a call that paid for verdicts only is on the backend's bill": SqlBug(
        "ROLL_UP_ACTIVITY",
        "settlement = 'settled' AND prompt_tokens IS NOT NULL",
        "settlement = 'settled'",
        VERDICT_PRICES,
    ),
    "a missing verdict is charged": Bug(
        "Evidence.enforcing_count",
        "verdict.probability_basis_points is not None",
        "True",
        VERDICT_PRICES,
    ),
    "a policy that was paused just now breaks the admission of others": Bug(
        "PolicySet.verdicts_max",
        "(policy := self.active.get(name)) is not None",
        "(policy := self.find(name, param='policy_ids')) is not None",
        ("domain/test_policy_set.py",),
    ),
    # Bugs in the charges for answers of providers, over whole calls.
    "the first of cumulative reports is charged": Bug(
        "Meter.count",
        "self.report = merged(self.report, event.usage)",
        "self.report = event.usage if self.report is NO_REPORT else self.report",
        CALL_HISTORIES,
    ),
    "reasoning that only the total shows is not charged": Bug(
        "_read_as",
        "if total is not None and total != prompt + completion:",
        "if total is not None and total > 16 * (prompt + completion):",
        CALL_HISTORIES,
        also=(
            (
                "metering:read_usage",
                "completion = report.total_tokens - prompt",
                "pass",
            ),
        ),
    ),
    "tokens that were read and written again are charged as input too": Bug(
        "possible_usages",
        "meanings = [read_and_rewritten, excluding_cache]",
        "meanings = [excluding_cache, read_and_rewritten]",
        ("domain/test_reading_usage.py",),
    ),
    "the backend's own price does not decide what its report means": Bug(
        "metering:_choose_meaning",
        "len(possible) > 1",
        "len(possible) > 2",
        ("domain/test_reading_usage.py",),
    ),
    "a last report that cannot be true is replaced by our own count": Bug(
        "Meter.reported_impossible_usage",
        "self.impossible_report is not None",
        "(self.report is NO_REPORT and self.impossible_report is not None)",
        ("domain/test_reading_usage.py",),
    ),
    "hidden reasoning of a completion that was not sent is charged": Bug(
        "Meter._output_limit",
        "call.choices - self._choices_not_sent",
        "call.choices",
        ("domain/test_metering.py",),
    ),
    "a call that was cut after its head is released": Bug(
        "Inference._close_uncharged",
        "if error.charged:",
        "if error.charged and tab.abandoned:",
        CALL_HISTORIES,
    ),
    "a proxy that lost the answer is taken for a refusal": Bug(
        "STATUS_RULES",
        "(502, 520), True",
        "(502, 520), False",
        CALL_HISTORIES,
    ),
    "a fan-out is priced as one answer": Bug(
        "usage:added",
        "parts=tuple(usages)",
        "parts=()",
        CALL_HISTORIES,
    ),
    "a fan-out with one failed part is released": Bug(
        "_FanOutCall._fail",
        "failure.charged = any(part.sent for part in self.parts)",
        "failure.charged = all(part.sent for part in self.parts)",
        CALL_HISTORIES,
    ),
    "a call has the prices of its end": Bug(
        "Admission.settle",
        'pricing = tab.prices.get(tab.backend or "", hold.pricing)',
        "pricing = self._last.pricing_at(self._clock())",
        CALL_HISTORIES,
        also=(
            (
                "Admission.hold",
                "prices = plan.fixed_prices or plan.prices_at(self._clock())",
                "self._last = call.model\nprices = plan.prices_at(self._clock())",
            ),
        ),
    ),
    "the cache split of an earlier report is lost": Bug(
        "merged",
        "if earlier is NO_REPORT:\n    return later",
        "if earlier is NO_REPORT or later.prompt_tokens is not None:\n    return later",
        CALL_HISTORIES,
    ),
    # Bugs in the dialects of providers.
    "searches among the output of Responses are not charged": Bug(
        "responses.usage:_read",
        "web_searches=searches_in_output if searches is None else searches",
        "web_searches=searches",
        EXCHANGES,
    ),
    "cache writes that a proxy repeats are charged as input": Bug(
        "_read_cache",
        "written = top_written",
        "written = None",
        ("backends/chat/test_usage.py",),
    ),
    "audio that only the total has is charged as output": Bug(
        "chat.usage:_read",
        "if uncounted:",
        "if uncounted is None:",
        ("backends/chat/test_usage.py",),
    ),
    "the tier in Gemini's report is not read": Bug(
        "gemini.usage:_read",
        "service_tier=_service_tier(reported)",
        "",
        ("backends/gemini/test_usage.py",),
    ),
    "a prompt that is read again after each search is held once": Bug(
        "_special_bounds",
        "prompts * size.hold_bound(model, counted)",
        "prompts * prompt_tokens",
        EXCHANGES,
    ),
    "an empty id of DashScope counts as another id": Bug(
        "answer:_tool_calls",
        "piece.id or None",
        "piece.id",
        ("backends/chat/test_answers.py",),
    ),
    "the input of a custom tool is lost": Bug(
        "answer:_tool_calls",
        "name, arguments = piece.custom.name, piece.custom.input",
        "name = piece.custom.name",
        EXCHANGES,
    ),
    "a call that names its type is taken for one of the provider's": Bug(
        "ConverseAnswer._read_block",
        "block.tool_use.type != records.SERVER_TOOL_USE",
        "block.tool_use.type is None",
        EXCHANGES,
    ),
    "images of answers have the price of text": Bug(
        "usage:_read_as",
        "output_image_tokens=min(report.output_image_tokens or 0, completion - output_audio)",
        "output_image_tokens=0",
        PRICED_EXCHANGES,
    ),
    "the thinking of Mistral is lost": Bug(
        "delta_of",
        'reasoning = reasoning or "".join(_thought(part) for part in content)',
        "",
        EXCHANGES,
    ),
    # Bugs in prices that depend on the call.
    "cached tokens do not count for the length of a prompt": Bug(
        "cost_of",
        "pricing.applying(usage.service_tier, usage.prompt_tokens)",
        "pricing.applying(usage.service_tier, usage.uncached_tokens)",
        PRICES,
    ),
    "a tier begins one token early": Bug(
        "_tiers",
        "found[tier.above_tokens + 1] = pricing_from_declared({**inherited, **tier.prices},"
        ' param=f"{setting}.{position}.pricing")',
        "found[tier.above_tokens] = pricing_from_declared({**inherited, **tier.prices},"
        ' param=f"{setting}.{position}.pricing")',
        PRICES,
    ),
    "a hold forgets the tiers": Bug(
        "Pricing.possible",
        "variant.from_tokens <= prompt_tokens",
        "variant.from_tokens == 0",
        PRICES,
    ),
    "a hold takes the cheapest price": Bug(
        "dearest_prices",
        "max(possible, key=lambda prices: hold_at(prices, bounds))",
        "min(possible, key=lambda prices: hold_at(prices, bounds))",
        PRICES,
    ),
    "a tier of service that is not declared is free of its tiers": Bug(
        "Pricing._declared_tier",
        "return other_name if other_name in declared else None",
        "return service_tier",
        CALL_HISTORIES,
    ),
    "the tier that was asked for is charged": Bug(
        "ChatStreamReader._take_tier",
        "self._service_tier = tier",
        "self._service_tier = self._service_tier or tier",
        PRICED_EXCHANGES,
    ),
    "a multiplier is rounded": Bug(
        "_multiplied",
        "if remainder:",
        "if remainder < 0:",
        PRICES,
    ),
    "audio from a cache is charged twice": Bug(
        "usage:_read_as",
        "(report.input_audio_tokens or 0) - (report.cached_audio_tokens or 0)",
        "report.input_audio_tokens or 0",
        PRICED_EXCHANGES,
    ),
    "audio is not held for": Bug(
        "hold_at",
        "prices.extra_input_audio * bounds.input_audio_tokens",
        "0",
        PRICES,
    ),
    "a price change is valid a second late": Bug(
        "Model.pricing_at",
        "if change.valid_from <= now:",
        "if change.valid_from < now:",
        ("settings/test_settings.py",),
    ),
    "a price change is ignored by holds": Bug(
        "Admission.hold",
        "prices = plan.fixed_prices or plan.prices_at(self._clock())",
        "prices = plan.prices_at(0)",
        ("journeys/calls/test_prices.py",),
    ),
    # Bugs in overage.
    "new credit ends a stop": Bug(
        "AccountBatch.__init__",
        "state.stopped or state.is_below_bound",
        "state.is_below_bound",
        ("domain/test_overage_bound.py",),
    ),
    "an organization beyond its bound is admitted": Bug(
        "AccountBatch._refuse_by_restrictions",
        "if self.stopped:",
        "if self.stopped and state.available_picousd < 0:",
        ("domain/test_overage_bound.py",),
    ),
    "a running call counts as debt": Bug(
        "AccountState.balance_picousd",
        "return self.available_picousd + spend.held_picousd + spend.unsettled_picousd",
        "return self.available_picousd + spend.unsettled_picousd",
        ("domain/test_overage_bound.py",),
    ),
    "a stop is not written": Bug(
        "_assignments",
        '", ".join(name + " = v." + name for name in columns)',
        '", ".join(name + " = v." + name for name in columns if name != "stopped")',
        OVERAGE,
    ),
    # Bugs in the bounds of prompts.
    "pages that a priced search finds are not held for": Bug(
        "PromptSize.bound",
        "(self.web_searches, bounds.web_search)",
        "(0 if model.pricing.web_search else self.web_searches, bounds.web_search)",
        ("domain/test_prompt_size.py",),
    ),
    "a truncation asks the tokenizer for each halving": Bug(
        "_COUNTS_MAX",
        "4",
        "100",
        ("api/responses/test_truncation.py",),
        also=(
            (
                "_Cuts.next_cut",
                "return min(await self._fitting_cut(self._fewest, self.best), self.best - 1)",
                "return (self._fewest + self.best) // 2",
            ),
        ),
    ),
}
