"""Mistakes about providers and about several backends of a model, for `test_planted_bugs`."""

from tests.proofs.bug import Bug

_USAGE = "backends/anthropic/usage.py"
_USAGE_TESTS = ("backends/anthropic/test_usage.py",)
_ANSWER = "backends/anthropic/answer.py"
_ANSWER_TESTS = ("backends/anthropic/test_answer.py",)
_FALLBACK = "backends/fallback.py"
_FALLBACK_TESTS = ("journeys/providers/test_fallback.py",)

PROVIDER_BUGS = {
    "the stub of the first report is charged": Bug(
        _USAGE,
        'completion = read_count(reported.get("output_tokens")) if is_final else None',
        'completion = read_count(reported.get("output_tokens"))',
        _USAGE_TESTS,
    ),
    "cache writes that grew are taken for the cheaper lifetime": Bug(
        _USAGE,
        "            long = written - short\n",
        "            short = written - long\n",
        _USAGE_TESTS,
    ),
    "what a compaction used is not charged": Bug(
        _USAGE, '_APART = ("compaction", "advisor_message")', "_APART = ()", _USAGE_TESTS
    ),
    "a signature is lost between turns": Bug(
        _ANSWER,
        "        if block.kind == records.THINKING and block.signature:\n",
        "        if block.kind == records.THINKING and block.signature and not block.thinking:\n",
        _ANSWER_TESTS,
    ),
    "an error before any output is charged": Bug(
        _ANSWER,
        "        if is_final and tells_of_use(report):\n",
        "        if report.usage is not None:\n",
        _ANSWER_TESTS,
    ),
    "another backend is tried after a charge": Bug(
        _FALLBACK,
        "                if error.charged or loop.time() >= self._deadline:\n",
        "                if loop.time() >= self._deadline:\n",
        _FALLBACK_TESTS,
    ),
    "the bill has the dearest price": Bug(
        "services/ledger/admission.py",
        "        pricing = reservation.prices.get(backend, hold.pricing)\n",
        "        pricing = hold.pricing\n",
        _FALLBACK_TESTS,
    ),
    "the hold has the first price": Bug(
        "domain/routes.py",
        "    return max(possible, key=lambda pricing: hold_picousd(pricing, bounds))\n",
        "    return next(iter(possible))\n",
        ("domain/test_routes.py",),
    ),
    "the output bound goes where the server ignores it": Bug(
        "backends/chat/request.py",
        "    body[dialect.output_bound_field or call.output_bound_field] = call.output_tokens_max\n",
        "    body[call.output_bound_field] = call.output_tokens_max\n",
        ("backends/test_presets.py",),
    ),
    "a key in a file is read once": Bug(
        "backends/credentials.py",
        "        if version != self._version:\n",
        "        if self._version is None:\n",
        ("backends/test_credentials.py",),
    ),
}
