"""Lists planted bugs in usage dialects, conditional prices and overage, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

CALL_HISTORIES = ("proofs/test_call_histories.py",)
PRICES = ("core/test_declared_prices.py",)
EXCHANGES = ("journeys/exchanges/test_exchanges.py",)
PRICED_EXCHANGES = ("journeys/exchanges/test_priced_exchanges.py",)
OVERAGE = ("money/overage/test_overage.py",)
MODEL_IMPORT = ("entry/commands/test_model.py",)

PRICE_BUGS = {
    "imported prices lack their tiers": Bug(
        "price_list:_lines", "[above for above in listed if above]", "[]", MODEL_IMPORT
    ),
    "a price that cannot be used is left out of the imported prices": Bug(
        "price_list:toml_text", "if unusable:", "if False:", MODEL_IMPORT
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
        ("core/test_reading_usage.py",),
    ),
    "the backend's own price does not decide what its report means": Bug(
        "metering:_choose_meaning",
        "len(possible) > 1",
        "len(possible) > 2",
        ("core/test_reading_usage.py",),
    ),
    "a last report that cannot be true is replaced by our own count": Bug(
        "Meter.reported_impossible_usage",
        "self.impossible_report is not None",
        "(self.report is NO_REPORT and self.impossible_report is not None)",
        ("core/test_reading_usage.py",),
    ),
    "hidden reasoning of a completion that was not sent is charged": Bug(
        "Meter._output_limit",
        "call.choices - self._choices_not_sent",
        "call.choices",
        ("core/test_metering.py",),
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
        "_FanOutCall.run",
        "self._failure.charged = sent > 0",
        "self._failure.charged = sent == call.choices",
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
        ("providers/chat/test_usage.py",),
    ),
    "audio that only the total has is charged as output": Bug(
        "chat.usage:_read",
        "if uncounted:",
        "if uncounted is None:",
        ("providers/chat/test_usage.py",),
    ),
    "the tier in Gemini's report is not read": Bug(
        "gemini.usage:_read",
        "service_tier=_service_tier(reported)",
        "",
        ("providers/gemini/test_usage.py",),
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
        ("providers/chat/test_answers.py",),
    ),
    "the input of a custom tool is lost": Bug(
        "answer:_tool_calls",
        "name, arguments = piece.custom.name, piece.custom.input",
        "name = piece.custom.name",
        EXCHANGES,
    ),
    "a call that names its type is taken for one of the provider's": Bug(
        "ConverseAnswer._begin_block",
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
        ("setup/settings/test_settings.py",),
    ),
    "a price change is ignored by holds": Bug(
        "Admission.hold",
        "prices = plan.fixed_prices or plan.prices_at(self._clock())",
        "prices = plan.prices_at(0)",
        ("journeys/calls/test_prices.py",),
    ),
    # Bugs in overage.
    "a hold is refused although the credit covers it": Bug(
        "PricesInForce.overage_max",
        "if declared.unbounded:",
        "if True:",
        ("journeys/calls/test_covered_calls.py",),
    ),
    "a model that searches on its own is believed": Bug(
        "PricesInForce.overage_max",
        "self.cost_max(bounds) - hold",
        "0",
        ("core/test_routes.py", "journeys/calls/test_bursts.py"),
    ),
    "a model that is known to search is not declared": Bug(
        "setup.catalog:_model",
        "searches > 0 if bounds.unbounded is None else bounds.unbounded",
        "bool(bounds.unbounded)",
        ("setup/settings/test_alternatives.py",),
    ),
    "searches without a limit are believed": Bug(
        "PricesInForce.overage_max",
        "if not bounds.web_searches or declared.limits_searches:",
        "if True:",
        ("core/test_routes.py",),
    ),
    "an observed excess is not expected again": Bug(
        "Admission.hold",
        "overage_max = max(overage_max, observed)",
        "pass",
        ("journeys/calls/test_bursts.py",),
    ),
    "after any excess, every call is expected to fill the context": Bug(
        "Admission.hold",
        "overage_max = max(overage_max, observed)",
        "overage_max = max(overage_max, cost_max - amount)",
        ("proofs/test_simulation.py",),
    ),
    "an excess is noted only in the memory of its process": Bug(
        "LedgerStore.resolve_all",
        "statements.append(excesses.note_statement(noted))",
        "pass",
        ("journeys/calls/test_bursts.py",),
    ),
    "an excess is noted after its answer": Bug(
        "Ledger._resolve_all",
        "self.excesses.note(excess)",
        "asyncio.get_running_loop().call_soon(self.excesses.note, excess)",
        ("proofs/test_simulation.py",),
    ),
    "a gateway reads only once what others have observed": Bug(
        "Upkeep.chores",
        "(_EXCESSES_INTERVAL_S, self.load_excesses)",
        "(_EXCESSES_INTERVAL_S, self.send_heartbeat)",
        ("setup/test_upkeep.py",),
    ),
    "an excess is lost to a load in progress": Bug(
        "Excesses._load",
        "by_model((*found, *noted))",
        "by_model(found)",
        ("proofs/test_simulation.py",),
    ),
    "a new process trusts every model": Bug(
        "Excesses.expected_of",
        "if not self.loaded:",
        "if False:",
        ("journeys/calls/test_bursts.py",),
    ),
    "each call waits for the failed loads of all calls before it": Bug(
        "Excesses.load_first",
        "if self._loads_ended != ended:",
        "if False:",
        ("money/overage/test_excesses.py",),
    ),
    "a tenant's allowed searches count against the calls of others": Bug(
        "Admission._excess_of",
        "if cost <= hold.hold_picousd + tab.declared_overage_picousd:",
        "if False:",
        ("journeys/isolation/test_excesses.py",),
    ),
    "what was observed is scaled without a limit": Bug(
        "Excess.overage_of",
        "min(scaled, max(cost_max - hold, self.overage_picousd))",
        "scaled",
        ("money/overage/test_rule.py",),
    ),
    "no alert is raised for an exceeded hold": Bug(
        "Alerts._conditions",
        "conditions += map(_exceeded, await excesses.find_latest(connection, _EXCESS_S))",
        "",
        ("journeys/calls/test_bursts.py",),
    ),
    "an excess never fades": Bug(
        "Excess.overage_of",
        "_divisor(self.hold_picousd) << self.halvings(now)",
        "_divisor(self.hold_picousd)",
        ("money/overage/test_rule.py",),
    ),
    "what is expected is rounded down": Bug(
        "Excess.overage_of",
        "-(-self.overage_picousd * max(hold, 1) // divisor)",
        "self.overage_picousd * max(hold, 1) // divisor",
        ("money/overage/test_rule.py",),
    ),
    "a smaller excess replaces a larger one of its day": SqlBug(
        "money.overage.store:_NOTE",
        ">= (o.cost - o.hold) * greatest(excluded.hold, 1)",
        ">= 0",
        ("money/overage/test_excesses.py",),
    ),
    "new credit ends a stop": Bug(
        "AccountBatch.__init__",
        "state.stopped or state.is_below_bound",
        "state.is_below_bound",
        ("money/overage/test_overage_bound.py",),
    ),
    "an organization beyond its bound is admitted": Bug(
        "AccountBatch._refuse_by_restrictions",
        "if self.stopped:",
        "if self.stopped and state.available_picousd < 0:",
        ("money/overage/test_overage_bound.py",),
    ),
    "a running call counts as debt": Bug(
        "AccountState.balance_picousd",
        "return self.available_picousd + spend.held_picousd + spend.unsettled_picousd",
        "return self.available_picousd + spend.unsettled_picousd",
        ("money/overage/test_overage_bound.py",),
    ),
    "a stop is not written": SqlBug(
        "money.holds.statements:_STATES",
        "stopped = v.stopped,",
        "",
        OVERAGE,
    ),
    # Bugs in the bounds of prompts.
    "pages that a priced search finds are not held for": Bug(
        "PromptSize.bound",
        "(self.web_searches, bounds.web_search)",
        "(0 if model.pricing.web_search else self.web_searches, bounds.web_search)",
        ("core/test_prompt_size.py",),
    ),
    "a truncation asks the tokenizer for each halving": Bug(
        "_COUNTS_MAX",
        "4",
        "100",
        ("faces/responses/test_truncation.py",),
        also=(
            (
                "_Cuts.next_cut",
                "return min(await self._fitting_cut(self._fewest, self.best), self.best - 1)",
                "return (self._fewest + self.best) // 2",
            ),
        ),
    ),
    "cached tokens that are beside the prompt are taken from it": Bug(
        "backend_config",
        "cache_adds_to_prompt=declared.cache_adds_to_prompt",
        "cache_adds_to_prompt=False",
        ("journeys/calls/test_billing_rules.py",),
    ),
    "the hold of several backends has the first hidden prompt": Bug(
        "_combined",
        "template=max(bound.template for bound in bounds)",
        "",
        ("setup/settings/test_alternatives.py",),
    ),
}
