"""Computes a provider's bill for an exchange by the provider's published rule.

This is plain arithmetic over `rules.json` and `prices.json`. It uses no code of tollkeeper, so that it
finds tollkeeper's errors.
"""

import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
RULES: dict[str, dict[str, Any]] = json.loads((_HERE / "rules.json").read_text())
PRICES: dict[str, dict[str, Any]] = json.loads((_HERE / "prices.json").read_text())
# A server between gateway and model stopped waiting, or the model failed during its work. These
# statuses do not show whether the provider bills the call.
_UNKNOWN_STATUSES = {408, 424, 499, 502, 504, 520, 524}
_TIMEOUTS = {408, 499, 504, 524}
# `fast` is another name for `priority`.
_TIERS = {"flex": "flex", "priority": "priority", "fast": "priority"}


@dataclass(frozen=True)
class Truth:
    """The provider's bill. `usd` is None if the exchange does not determine it."""

    usd: Decimal | None
    # The lines of the calculation, or the reason why there is none.
    arithmetic: list[str]
    source: str
    counts: dict[str, int] = field(default_factory=dict)


def rule_of(who: str, protocol: str) -> dict[str, Any]:
    """Return the rule with the longest name that `who` begins with. Claude's Messages protocol on Bedrock
    has Anthropic's rule."""
    name = max((name for name in RULES if who.startswith(name)), key=len)
    rule = RULES["Anthropic" if protocol == "bedrock_messages" else name]
    return {**RULES[rule["same_as"]], **rule} if "same_as" in rule else rule


def bill(rule: dict[str, Any], answer: dict[str, Any], request: Any, card: str) -> Truth:
    """Compute the bill for an answer in the form of the recorded exchanges."""
    source = rule["source"]
    events = _events(answer)
    if (nothing := _without_output(answer, events)) is not None:
        known, reason = nothing
        return Truth(Decimal(0) if known else None, [reason], source)
    report = _last_report(events)
    counts = None if report is None else _counts(rule, report, events, request)
    if report is None or counts is None:
        return Truth(None, ["the answer does not report its usage"], source)
    usd, lines = price(counts, PRICES[card], _service_tier(events, report))
    return Truth(usd, lines, source, counts)


def price(
    counts: dict[str, int], card: dict[str, Any], tier: str | None
) -> tuple[Decimal, list[str]]:
    """Multiply counts by prices. Return the sum and the lines of the calculation."""
    total = sum(
        counts[name]
        for name in ("prompt", "cache_read", "cache_write", "cache_write_1h", "input_audio")
    )
    prices = card["above"] if "above" in card and total > card["above_tokens"] else card
    factor = Decimal(card.get("service_tiers", {}).get(_TIERS.get(tier or "", ""), "1"))
    usd, lines = Decimal(0), []
    for name, count in counts.items():
        if not count:
            continue
        each = Decimal(prices[name])
        part = count * each * (1 if name == "web_search" else factor)
        times = f" * {factor}" if factor != 1 and name != "web_search" else ""
        lines.append(f"{count} {name} * {each:f}{times} = {part.normalize():f}")
        usd += part
    return usd, [*lines, f"total = {usd.normalize():f} USD"]


def _events(answer: dict[str, Any]) -> list[dict[str, Any]]:
    if "body" in answer:
        return [answer["body"]]
    if "frames" in answer:
        return [
            content if name == "chunk" else {name: content}
            for frame in answer["frames"]
            for name, content in frame.items()
        ]
    return [line for line in answer["lines"] if isinstance(line, dict)]


def _without_output(
    answer: dict[str, Any], events: list[dict[str, Any]]
) -> tuple[bool, str] | None:
    """Return whether an answer without output is known to be free, and the reason. Return None if the
    answer has output."""
    status = answer.get("status", 200)
    if status != 200:
        if status in _UNKNOWN_STATUSES:
            return False, f"status {status} does not say whether the model ran"
        return True, f"the provider refused the call (status {status}); refused calls are free"
    first = next(iter(events), {})
    error = _error_of(first)
    if error is None:
        # Responses streams announce the response before it fails.
        failed = next((event for event in events if _error_of(event) is not None), None)
        begun = [event for event in events if event.get("type") not in _ANNOUNCEMENTS]
        if failed is None or begun or _reports(failed):
            return None
        error = _error_of(failed)
    if str(_code_of(error)) in map(str, _TIMEOUTS):
        return False, "the first event is a timeout, which does not say whether the model ran"
    return True, "the stream begins with an error; refused calls are free"


_ANNOUNCEMENTS = {"response.created", "response.in_progress", "response.failed", "error"}


def _error_of(event: dict[str, Any]) -> Any:
    for name, content in event.items():
        if (name == "error" and content) or name.endswith("Exception"):
            return content
    response = event.get("response")
    return response.get("error") if isinstance(response, dict) else None


def _code_of(error: Any) -> Any:
    return error.get("code") if isinstance(error, dict) else None


def _reports(value: Any) -> list[dict[str, Any]]:
    """Collect the usage objects at any depth, in their order."""
    found: list[dict[str, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
        if name in ("usage", "usageMetadata") and isinstance(item, dict):
            found.append(item)
        elif isinstance(item, dict | list):
            found += _reports(item)
    return found


def _last_report(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Merge the usage reports: the last value of each field counts. Return None if an error without a
    usage report follows, or if an answer of Messages has no final report."""
    merged: dict[str, Any] = {}
    for event in events:
        reports = _reports(event)
        if _error_of(event) is not None and not reports:
            return None
        for report in reports:
            merged |= {name: value for name, value in report.items() if value is not None}
    starts = [event for event in events if event.get("type") == "message_start"]
    if starts and not any(event.get("type") == "message_delta" for event in events):
        return None
    return merged or None


def _counts(
    rule: dict[str, Any],
    report: dict[str, Any],
    events: list[dict[str, Any]],
    request: Any,
) -> dict[str, int] | None:
    """Split the report by the rule into counts that do not overlap. Return None if it is incomplete."""

    def read(name: str) -> Any:
        return next((n for path in rule.get(name, ()) if (n := _at(report, path))), 0)

    if not _finished(events) and not any(_at(report, path) for path in rule["output"]):
        # The report is a running total that does not count the output yet.
        return None
    prompt, output = read("input"), read("output")
    if any(not isinstance(count, int) or count < 0 for count in (prompt, output)):
        return None
    cached, written = read("cache_read"), read("cache_write")
    written_1h = read("cache_write_1h")
    if not written_1h and not _has_lifetimes(report) and _asks_for_an_hour(request):
        written_1h = written
    if rule.get("cache") != "beside":
        # If tokens are both read from the cache and written to it, the prompt counts them once.
        prompt -= cached + (0 if cached + written > prompt else written)
    total = report.get("total_tokens", report.get("totalTokenCount", 0))
    if total != read("input") + output:
        output += read("reasoning_beside")
    if rule.get("output_by_total"):
        output = max(output, total - read("input"))
    audio = read("input_audio") - read("cached_audio")
    if read("input_audio_by_total"):
        audio = total - prompt - output
    else:
        prompt -= audio
    image = read("output_image")
    for iteration in report.get("iterations", ()):
        if iteration["type"] in rule.get("iterations", ()):
            prompt += iteration["input_tokens"]
            output += iteration["output_tokens"]
    return {
        "prompt": prompt,
        "cache_read": cached,
        "cache_write": written - written_1h,
        "cache_write_1h": written_1h,
        "input_audio": audio,
        "completion": output - image,
        "output_image": image,
        "web_search": _searches(rule, report, events),
    }


def _finished(events: list[dict[str, Any]]) -> bool:
    """Return whether an answer of Gemini has ended. Answers of other providers count as ended."""
    said = [event for event in events if "candidates" in event]
    return not said or "finishReason" in json.dumps(said)


def _searches(rule: dict[str, Any], report: dict[str, Any], events: list[dict[str, Any]]) -> int:
    for path in rule.get("searches", ()):
        if path == "queries":
            return _search_queries(events)
        if path == "search_calls":
            return _search_calls(events)
        if found := _at(report, path):
            return int(found)
    return 0


def _search_queries(events: list[dict[str, Any]]) -> int:
    """Count Gemini's search queries: those of the last chunk that contains queries, without empty ones."""
    queries: list[str] = []
    for event in events:
        for candidate in event.get("candidates", ()):
            queries = candidate.get("groundingMetadata", {}).get("webSearchQueries", queries)
    return len([query for query in queries if query])


def _search_calls(events: list[dict[str, Any]]) -> int:
    """Count the searches in the output items of a Responses answer. Opened pages are free."""
    last = events[-1].get("response", events[-1])
    calls = [item for item in last.get("output", ()) if item.get("type") == "web_search_call"]
    return sum(
        max(1, len(call["action"].get("queries") or ()))
        for call in calls
        if call.get("action", {}).get("type", "search") == "search"
    )


def _service_tier(events: list[dict[str, Any]], report: dict[str, Any]) -> str | None:
    """Return the service tier that the answer names last. Its field depends on the provider."""
    found: str | None = None
    for event in events:
        places = [event, event.get("response"), event.get("metadata")]
        for place in places:
            if not isinstance(place, dict):
                continue
            tier = place.get("service_tier", place.get("serviceTier"))
            found = (tier.get("type") if isinstance(tier, dict) else tier) or found
    traffic = str(report.get("trafficType", "")).removeprefix("ON_DEMAND_").lower()
    return found or report.get("service_tier") or report.get("serviceTier") or traffic


def _at(report: dict[str, Any], path: str) -> Any:
    """Return the value at the path `a.b`, or at `a[key=value].b` if `a` is a list. None if missing."""
    value: Any = report
    for step in path.split("."):
        name, _, wanted = step.partition("[")
        value = value.get(name) if isinstance(value, dict) else None
        if wanted and value is not None:
            key, _, text = wanted.removesuffix("]").partition("=")
            value = next((item for item in value if item.get(key) == text), None)
    return value


def _has_lifetimes(report: dict[str, Any]) -> bool:
    return bool(report.get("cache_creation") or report.get("cacheDetails"))


def _asks_for_an_hour(request: Any) -> bool:
    return '"ttl": "1h"' in json.dumps(request)
