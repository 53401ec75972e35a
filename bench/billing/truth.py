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
_WRITTEN = json.loads((_HERE / "rules.json").read_text())
RULES: dict[str, dict[str, Any]] = _WRITTEN["providers"]
# For each status of a failed call: whether the call is known to be free, and the source.
STATUSES: dict[str, dict[str, Any]] = _WRITTEN["statuses"]
# The statuses that have the meaning of errors in streams.
ERROR_STATUSES: dict[str, int] = _WRITTEN["errors_in_streams"]
PRICES: dict[str, dict[str, Any]] = json.loads((_HERE / "prices.json").read_text())
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
    rule = RULES["Anthropic" if protocol == "bedrock_messages" else _rule_name(who)]
    return {**RULES[rule["same_as"]], **rule} if "same_as" in rule else rule


def provider_of(who: str) -> str:
    return str(RULES[_rule_name(who)]["provider"])


def _rule_name(who: str) -> str:
    who = who.removeprefix("Google ")
    return max((name for name in RULES if who.startswith(name)), key=len)


def cite(source: dict[str, Any]) -> str:
    """Return the source with its address and the date on which it was read, if they are known."""
    read_on = f"read on {source['read_on']}" if source["read_on"] else None
    place = ", ".join(part for part in (source["url"], read_on) if part)
    return f"{source['source']} ({place})" if place else str(source["source"])


def bill(
    rule: dict[str, Any], answer: dict[str, Any], request: Any, card: str, cut: bool = False
) -> Truth:
    """Compute the bill for an answer in the form of the recorded exchanges. `cut` says that the connection
    broke after this part of the answer."""
    source = cite(rule)
    events = _events(answer)
    status = answer.get("status", 200)
    if status != 200:
        return _refused(rule, answer["body"], status)
    if "free_finish" in rule and rule["free_finish"] in _finishes(events):
        reason = f"the finish reason is {rule['free_finish']}, and such answers are free"
        return Truth(Decimal(0), [reason], source)
    if (refused := _refused_in_stream(events)) is not None:
        return refused
    if cut and not rule.get("running_totals_are_billed"):
        return Truth(None, ["the provider may bill output that it did not send any more"], source)
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


def failed(status: int) -> Truth:
    """Return the bill for a call that failed with this status."""
    found = STATUSES[str(status)]
    if found["free"]:
        return Truth(Decimal(0), [f"calls that fail with {status} are free"], cite(found))
    return Truth(None, [f"{status} does not say whether the model ran"], cite(found))


def _refused(rule: dict[str, Any], error: dict[str, Any], status: int) -> Truth:
    code = _code_of(_error_of(error))
    if code in rule.get("billed_refusals", ()):
        reason = (
            f"the provider bills the input if it refuses with {code}, and does not say how much"
        )
        return Truth(None, [reason], cite(rule))
    return failed(status)


def _refused_in_stream(events: list[dict[str, Any]]) -> Truth | None:
    """Return the bill for an answer that has an error instead of output, or None for other answers."""
    failing = next((event for event in events if _error_of(event) is not None), None)
    if failing is None:
        return None
    if failing is not events[0]:
        # Responses streams announce the response before it fails.
        begun = [event for event in events if event.get("type") not in _ANNOUNCEMENTS]
        if begun or _reports(failing):
            return None
    return failed(_status_of(failing))


def _status_of(event: dict[str, Any]) -> int:
    """Return the status that has the meaning of an error in a stream."""
    error = _error_of(event)
    names = [*event, error.get("code"), error.get("type")]
    for name in map(str, names):
        if name in ERROR_STATUSES:
            return ERROR_STATUSES[name]
        if name in STATUSES:
            return int(name)
    raise ValueError(f"the rules do not contain the error {error}")


def _finishes(events: list[dict[str, Any]]) -> set[str]:
    choices = [choice for event in events for choice in event.get("choices", ())]
    return {choice["finish_reason"] for choice in choices if choice.get("finish_reason")}


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
