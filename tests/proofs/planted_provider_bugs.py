"""Lists planted bugs in provider protocols and in models with several backends, and their tests."""

from tests.proofs.bug import Bug

_USAGE_TESTS = ("backends/anthropic/test_usage.py",)
_ANSWER_TESTS = ("backends/anthropic/test_answer.py",)
_FALLBACK_TESTS = ("journeys/providers/test_fallback.py",)

PROVIDER_BUGS = {
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
        ("domain/test_reading_usage.py",),
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
        ("domain/test_routes.py",),
    ),
    "the output bound goes where the server ignores it": Bug(
        "ChatWire.encode_request",
        "body[dialect.output_limit_field or call.output_limit_field] = call.output_tokens_max",
        "body[call.output_limit_field] = call.output_tokens_max",
        ("backends/test_presets.py",),
    ),
    "a key in a file is read once": Bug(
        "KeyInFile.headers_for",
        "if version != self._version:",
        "if self._version is None:",
        ("backends/test_credentials.py",),
    ),
}
