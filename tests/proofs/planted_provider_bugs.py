"""Lists planted bugs in provider protocols and in models with several backends, and their tests."""

from tests.proofs.bug import Bug

_USAGE_TESTS = ("providers/anthropic/test_usage.py",)
_ANSWER_TESTS = ("providers/anthropic/test_answer.py",)
_FALLBACK_TESTS = ("journeys/providers/test_fallback.py",)
_BILLED_TO_END_TESTS = ("journeys/calls/test_billed_to_end.py",)
_BILLING_RULE_TESTS = ("journeys/calls/test_billing_rules.py",)

PROVIDER_BUGS = {
    "a complete answer without a finish reason is charged but not delivered": Bug(
        "ChatWire.read_whole",
        "len(deltas) == call.choices",
        "all(delta.finish for delta in deltas.values())",
        ("faces/chat/test_answer_types.py",),
    ),
    "the seed of one completion is more than the backend accepts": Bug(
        "_part_call",
        "seed - part if exceeds else seed + part",
        "seed + part",
        ("providers/test_fan_out.py",),
    ),
    "the stub of the first report is charged": Bug(
        "UsageReader._read",
        'completion = read_count(reported.get("output_tokens")) if is_final else None',
        'completion = read_count(reported.get("output_tokens"))',
        _USAGE_TESTS,
    ),
    "cache writes are taken for the cheaper lifetime": Bug(
        "Call.writes_cache_for_1h",
        "pricing.input_cache_write_1h >= pricing.input_cache_write",
        "pricing.input_cache_write_1h <= pricing.input_cache_write",
        ("core/test_reading_usage.py",),
    ),
    "a blocked prompt is charged the whole output limit": Bug(
        "GeminiAnswer._read",
        "self._events.append(UsageReport(ReportedUsage(completion_tokens=0)))",
        "",
        ("journeys/providers/test_gemini.py",),
    ),
    "the output of a report without the prompt's count is not used": Bug(
        "Meter._completed_report",
        "if report.prompt_tokens is None:",
        "if report.prompt_tokens is None and not report.completion_tokens:",
        ("journeys/providers/test_gemini.py",),
    ),
    "a cut call pays for what a chat template might add": Bug(
        "Admission.hold",
        "tab.meter.prompt_tokens = size.likely_tokens(plan.model, counted)",
        "tab.meter.prompt_tokens = size.bound(plan.model, counted)",
        ("journeys/calls/test_tokenizer.py",),
    ),
    "an answer that is billed to its end is left after ten seconds": Bug(
        "RunningCalls.abandon",
        "tab.is_billed_to_end and self._long_drains.take_place(tab)",
        "False",
        _BILLED_TO_END_TESTS,
    ),
    "an answer that is billed to its end is booked as far as it was read": Bug(
        "_unknown_cost",
        "if meter.broke_off and tab.is_billed_to_end and has_stopped_reading:",
        "if False:",
        _BILLED_TO_END_TESTS,
    ),
    "an answer that is billed to its end is booked as far as a policy let it be read": Bug(
        "_unknown_cost",
        "tab.has_ended_early or isinstance(error, _STOPS_READING)",
        "tab.has_ended_early",
        _BILLED_TO_END_TESTS,
    ),
    "an answer that is billed to its end is booked as far as it came before a silence": Bug(
        "_STOPS_READING",
        "PolicyDenied, Unavailable, DeadlineExceeded",
        "PolicyDenied, Unavailable",
        _BILLED_TO_END_TESTS,
    ),
    "an answer that is billed to its end is booked as far as a stopping gateway has read it": Bug(
        "Tab.has_ended_early",
        "return self.alarm.now() >= limit",
        "return self.alarm.now() >= limit and not self.stopped",
        _BILLED_TO_END_TESTS,
        also=(
            (
                "_STOPS_READING",
                "PolicyDenied, Unavailable, DeadlineExceeded",
                "PolicyDenied, DeadlineExceeded",
            ),
        ),
    ),
    "an answer that was denied at its end counts as cut": Bug(
        "_charge_of_failed",
        "not (tab.is_read or error.backend_ended_answer)",
        "not error.backend_ended_answer",
        _BILLED_TO_END_TESTS,
    ),
    "one organization reads all answers that are billed to their end": Bug(
        "RunningCalls.__init__",
        "_Drains(limits.long_drains_max, -(-limits.long_drains_max // 4))",
        "_Drains(limits.long_drains_max, limits.long_drains_max)",
        _BILLED_TO_END_TESTS,
    ),
    "a completion that a provider gives away makes the others an estimate": Bug(
        "Tab.set_parts",
        "[part for part in parts if self.may_cost_fees or not part.is_free]",
        "parts",
        _BILLING_RULE_TESTS,
    ),
    "a search of a completion that a provider gives away is free": Bug(
        "Tab.set_parts",
        "[part for part in parts if self.may_cost_fees or not part.is_free]",
        "[part for part in parts if not part.is_free]",
        _BILLING_RULE_TESTS,
    ),
    "one completion that a provider gives away makes all of them free": Bug(
        "_FanOutCall.run",
        "all(part.meter.is_free for part in self.parts if part.sent)",
        "any(part.meter.is_free for part in self.parts if part.sent)",
        _BILLING_RULE_TESTS,
    ),
    "a completion without a report has not searched": Bug(
        "Meter.set_parts",
        "known and not (held is not None and held.web_searches)",
        "known",
        _BILLING_RULE_TESTS,
    ),
    "an estimate exceeds its hold": Bug(
        "Meter.set_parts",
        "prompt_tokens = min(prompt_tokens, held.prompt_tokens // held.prompts)",
        "",
        ("journeys/calls/test_usage.py",),
    ),
    "the usage of a compaction is not charged": Bug(
        "_NOT_INCLUDED", '("compaction", "advisor_message")', "()", _USAGE_TESTS
    ),
    "a signature is lost between turns": Bug(
        "BlockReader._end_block",
        "if block.signature:",
        "if block.signature and not block.reasoning:",
        _ANSWER_TESTS,
    ),
    "an error before any output is charged": Bug(
        "EventReader._report",
        "if is_final and usage_means_charge(report):",
        "if report.usage is not None:",
        _ANSWER_TESTS,
    ),
    "another backend is tried after a charge": Bug(
        "may_send_again",
        "not error.charged",
        "True",
        _FALLBACK_TESTS,
    ),
    "the bill has the dearest price": Bug(
        "Admission.settle",
        'pricing = tab.prices.get(tab.backend or "", hold.pricing)',
        "pricing = hold.pricing",
        _FALLBACK_TESTS,
    ),
    "the hold has the first price": Bug(
        "PricesInForce.dearest",
        "return max(self.by_backend.values(), key=lambda pricing: hold_picousd(pricing, bounds))",
        "return next(iter(self.by_backend.values()))",
        ("core/test_routes.py",),
    ),
    "the output bound goes where the server ignores it": Bug(
        "ChatWire.encode_request",
        "body[dialect.output_limit_field or call.output_limit_field] = call.output_tokens_max",
        "body[call.output_limit_field] = call.output_tokens_max",
        ("providers/test_presets.py",),
    ),
    "a key in a file is read once": Bug(
        "KeyInFile.headers_for",
        "if version != self._version:",
        "if self._version is None:",
        ("providers/test_credentials.py",),
    ),
    "a stream that lost its usage is complete": Bug(
        "ChatStreamReader.end_body",
        "self._has_final_usage and all(self.finished) and not self.ended",
        "all(self.finished) and not self.ended",
        ("providers/chat/test_answer_faults.py",),
    ),
    "a client's text counts against a backend": Bug(
        "_content_refusal",
        '_ACCOUNT_MESSAGES.match(error_message(body, secrets) or "")',
        '_ACCOUNT_MESSAGES.search(error_message(body, secrets) or "")',
        ("providers/test_refusals.py",),
    ),
    "an operator's billing limit is the client's fault": Bug(
        "_content_refusal",
        'error.get("code") in _ACCOUNT_CODES',
        "False",
        ("providers/test_refusals.py",),
    ),
    "the hidden prompt of Grok at Azure is not held": Bug(
        "presets:hidden_prompt_tokens",
        "max(by_name, preset.hidden_prompt_tokens)",
        "preset.hidden_prompt_tokens",
        ("providers/test_presets.py",),
    ),
    "the texts of Bedrock's streams are delivered twice": Bug(
        "_by_stream_index",
        "not written or set(streamed) <= set(written)",
        "True",
        ("providers/responses/test_answer.py",),
    ),
    "searches of a paused answer are not held": Bug(
        "prompt_size:_web_searches",
        "allowed + _searches_to_continue(prompt)",
        "allowed",
        ("journeys/providers/test_messages_face.py",),
    ),
}
