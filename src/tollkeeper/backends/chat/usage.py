"""Reads usage from all chat servers: if their dialects differ, the report itself shows which one it
is.

- OpenAI, vLLM, llama.cpp, Groq: cached tokens in `prompt_tokens_details` and reasoning in
  `completion_tokens_details`, both included in the counts.
- xAI: reasoning in addition to the completion, as the total shows; a price in ticks.
- Anthropic through a compatible endpoint: `cache_read_input_tokens` and
  `cache_creation_input_tokens` in addition to the prompt.
- DashScope, OpenRouter: cache writes in `prompt_tokens_details`, included in the prompt.
- any-llm, LiteLLM: the lifetimes of cache writes in `cache_creation_token_details` there, and
  Anthropic's counts repeated at the top, which are then included in the prompt.
- Mistral: `prompt_token_details`, `num_cached_tokens`. DeepSeek: `prompt_cache_hit_tokens`.
- Mistral: `prompt_audio_seconds`. The tokens of that audio are only in the total.
- Moonshot: `cached_tokens` at the top. SGLang, DeepSeek at Azure: `reasoning_tokens` at the top.
- Cohere: `cached_tokens` at the top may exceed the prompt, which is what Cohere bills.
- OpenAI: `audio_tokens` in both details, included in the counts; Gemini's and SGLang's are the
  same.
- OpenAI: the service tier outside the report. Anthropic: in it.
- OpenRouter, Perplexity: `cost`. OpenRouter: searches in `server_tool_use_details`. LiteLLM: in the
  details of the prompt.
"""

from typing import Any, NamedTuple

from tollkeeper.backends.reported_cost import stated_cost, ticks_in_picousd
from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import (
    AbsurdCount,
    ReportedUsage,
    all_writes,
    cached_audio_tokens,
    first_count,
    read_count,
    read_service_tier,
)

# OpenAI's own counts. A report with only these fields has nothing that dialects add.
_COUNTS = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
_CACHED = ("cached_tokens", "cache_read_tokens")
_CACHED_AT_TOP = ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens")
_WRITTEN = (
    *("cache_write_tokens", "cache_creation_input_tokens", "created_cache_tokens"),
    "cache_creation_tokens",
)


def read_chat_usage(reported: Any, *, service_tier: str | None = None) -> UsageReport:
    """Reads a report. One that is not an object contains nothing; one with an impossible count is
    absurd. `service_tier` is the tier that the answer names outside its report."""
    if not isinstance(reported, dict):
        return UsageReport(ReportedUsage(service_tier=service_tier))
    try:
        return UsageReport(_read(reported, service_tier))
    except AbsurdCount:
        return UsageReport(None, absurd=reported)


def _read(reported: FreeObject, service_tier: str | None) -> ReportedUsage:
    prompt = read_count(reported.get("prompt_tokens"))
    completion = read_count(reported.get("completion_tokens"))
    total = read_count(reported.get("total_tokens"))
    if reported.keys() <= _COUNTS:
        return ReportedUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=total,
            service_tier=service_tier or None,
            written=reported,
        )
    prompt_details = _object(reported, "prompt_tokens_details", "prompt_token_details")
    completion_details = _object(reported, "completion_tokens_details")
    cache = _read_cache(reported, prompt_details or {}, prompt)
    reasoning = read_count((completion_details or {}).get("reasoning_tokens"))
    if reasoning is None:
        reasoning = read_count(reported.get("reasoning_tokens"))
    audio = read_count((prompt_details or {}).get("audio_tokens"))
    unheard = _audio_in_total(reported, prompt, completion, total)
    if unheard:
        prompt, audio = (prompt or 0) + unheard, (audio or 0) + unheard
    return ReportedUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total,
        cached_tokens=cache.read,
        cache_write_tokens=cache.written,
        cache_write_5m_tokens=cache.written_5m,
        cache_write_1h_tokens=cache.written_1h,
        cache_is_beside_prompt=cache.is_beside_prompt,
        reasoning_tokens=reasoning,
        web_searches=_web_searches(reported, prompt_details or {}),
        input_audio_tokens=audio,
        cached_audio_tokens=cached_audio_tokens(prompt_details),
        output_audio_tokens=read_count((completion_details or {}).get("audio_tokens")),
        output_image_tokens=read_count((completion_details or {}).get("image_tokens")),
        service_tier=service_tier or read_service_tier(reported),
        cost_picousd=_cost(reported),
        prompt_details=prompt_details,
        completion_details=completion_details,
        written=reported,
    )


class _Cache(NamedTuple):
    """Holds the cache reads and writes."""

    read: int | None
    written: int | None
    # The writes with a stated lifetime.
    written_5m: int | None
    written_1h: int | None
    # None if the report has no cache data: then the previous report counts.
    is_beside_prompt: bool | None


def _read_cache(reported: FreeObject, details: FreeObject, prompt: int | None) -> _Cache:
    inside = first_count(details, _CACHED)
    top_read = read_count(reported.get("cache_read_input_tokens"))
    top_written = read_count(reported.get("cache_creation_input_tokens"))
    top_split = _split(reported, "cache_creation")
    if inside is None and (top_read or top_written):
        return _Cache(top_read, all_writes(top_written, *top_split), *top_split, True)
    # Proxies repeat Anthropic's counts next to OpenAI's: then they are included. Libraries put the
    # lifetimes of cache writes into the details of the prompt.
    written = first_count(details, _WRITTEN)
    if written is None:
        written = top_written
    split = _split(details, "cache_creation_token_details")
    if split == _NO_SPLIT and written is not None:
        split = top_split
    read = _read_at_top(reported, prompt) if inside is None else inside
    return _Cache(read, all_writes(written, *split), *split, None if read is None else False)


_NO_SPLIT = (None, None)


def _split(reported: FreeObject, name: str) -> tuple[int | None, int | None]:
    """Returns the cache writes for five minutes and for an hour, if the report separates them."""
    found = _object(reported, name) or {}
    return (
        read_count(found.get("ephemeral_5m_input_tokens")),
        read_count(found.get("ephemeral_1h_input_tokens")),
    )


def _read_at_top(reported: FreeObject, prompt: int | None) -> int | None:
    """Returns the cache reads of servers that include them in the prompt. More than the prompt is
    not part of the bill, so it must not reduce the price."""
    count = first_count(reported, _CACHED_AT_TOP)
    return None if count is not None and prompt is not None and count > prompt else count


def _audio_in_total(
    reported: FreeObject, prompt: int | None, completion: int | None, total: int | None
) -> int:
    """Returns the audio tokens that the prompt's count omits: the excess of the total over the
    sum."""
    if total is None or not read_count(reported.get("prompt_audio_seconds")):
        return 0
    return max(0, total - (prompt or 0) - (completion or 0))


def _object(reported: FreeObject, *names: str) -> FreeObject | None:
    for name in names:
        if isinstance(found := reported.get(name), dict):
            return found
    return None


def _web_searches(reported: FreeObject, prompt_details: FreeObject) -> int | None:
    server_tools = _object(reported, "server_tool_use", "server_tool_use_details") or {}
    for place, name in (
        (server_tools, "web_search_requests"),
        (prompt_details, "web_search_requests"),
        (reported, "num_search_queries"),
    ):
        count = read_count(place.get(name))
        if count is not None:
            return count
    return None


def _cost(reported: FreeObject) -> int | None:
    ticks = ticks_in_picousd(reported.get("cost_in_usd_ticks"))
    return stated_cost(reported) if ticks is None else ticks
