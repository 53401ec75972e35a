"""Reads Gemini's usage reports (`usageMetadata`). Every record of a stream has one, with the totals
so far.

- `promptTokenCount` includes cached tokens.
- `toolUsePromptTokenCount` is what server-side tools add to the prompt. The only one requested is
  web search, which costs a fee per query but nothing for the results' tokens, so they're ignored
  and subtracted from the total.
- `candidatesTokenCount` lacks thoughts, except at some endpoints; the total tells. If it's missing,
  the output isn't known yet, unless the record ends the answer and has other counts.
- For an image at an ordinary URL, the Gemini API reports no `promptTokenCount`, but the output.
- `serviceTier` is the tier; at Vertex AI, `trafficType`.
"""

from typing import Any

from tollkeeper.core.inference import UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import ReportedUsage, read_count
from tollkeeper.providers.usage_reports import Counts, known_details, usage_report

_COUNTS = Counts(
    prompt_tokens="promptTokenCount",
    cached_tokens="cachedContentTokenCount",
    reasoning_tokens="thoughtsTokenCount",
)
_AUDIO, _IMAGE = "AUDIO", "IMAGE"
_TIER_PREFIX = "service_tier_"
# Provisioned throughput has its own price, so it's a tier.
_TIERS = {
    "ON_DEMAND_FLEX": "flex",
    "ON_DEMAND_PRIORITY": "priority",
    "PROVISIONED_THROUGHPUT": "provisioned_throughput",
}


def read_usage(reported: Any, *, is_final: bool, searches: int = 0) -> UsageReport:
    """`is_final`: the answer has ended. `searches`: in the answer so far, since the report doesn't
    say."""
    return usage_report(reported, lambda usage: _read(usage, is_final, searches))


def _read(reported: FreeObject, is_final: bool, searches: int) -> ReportedUsage:
    counts = _COUNTS.read(reported)
    prompt, thoughts = counts["prompt_tokens"], counts["reasoning_tokens"]
    total = _charged_total(reported)
    audio = _of_modality(_AUDIO, reported, "promptTokensDetails")
    images = _of_modality(_IMAGE, reported, "candidatesTokensDetails")
    return ReportedUsage(
        **counts,
        completion_tokens=_completion(reported, prompt, thoughts, total, is_final=is_final),
        total_tokens=total,
        web_searches=searches or None,
        reports_prompt_before_output=True,
        input_audio_tokens=audio,
        cached_audio_tokens=_of_modality(_AUDIO, reported, "cacheTokensDetails"),
        output_audio_tokens=_of_modality(_AUDIO, reported, "candidatesTokensDetails"),
        output_image_tokens=images,
        service_tier=_service_tier(reported),
        is_running_total=not is_final,
        prompt_details=known_details(cached_tokens=counts["cached_tokens"], audio_tokens=audio),
        completion_details=known_details(reasoning_tokens=thoughts, image_tokens=images),
        written=reported,
    )


def _service_tier(reported: FreeObject) -> str | None:
    tier, traffic = reported.get("serviceTier"), reported.get("trafficType")
    if isinstance(tier, str) and tier:
        return tier.lower().removeprefix(_TIER_PREFIX)
    return _TIERS.get(traffic) if isinstance(traffic, str) else None


def _charged_total(reported: FreeObject) -> int | None:
    """Without search results."""
    total = read_count(reported.get("totalTokenCount"))
    results = read_count(reported.get("toolUsePromptTokenCount"))
    # A smaller total doesn't include them.
    return (
        total - results if total is not None and results is not None and total >= results else total
    )


def _completion(
    reported: FreeObject,
    prompt: int | None,
    thoughts: int | None,
    total: int | None,
    *,
    is_final: bool,
) -> int | None:
    candidates = read_count(reported.get("candidatesTokenCount"))
    if candidates is None and (not is_final or (prompt is None and thoughts is None)):
        return None
    candidates = candidates or 0
    if thoughts and candidates >= thoughts and total == (prompt or 0) + candidates:
        # Thoughts are included.
        return candidates
    return candidates + (thoughts or 0)


def _of_modality(modality: str, reported: FreeObject, name: str) -> int | None:
    """From the list `name`."""
    details = reported.get(name)
    if not isinstance(details, list):
        return None
    counts = [
        read_count(detail.get("tokenCount"))
        for detail in details
        if isinstance(detail, dict) and detail.get("modality") == modality
    ]
    return sum(count or 0 for count in counts) if counts else None
