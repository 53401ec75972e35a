"""Reads the usage reports of all chat servers.

The servers report usage in different forms, which the reader recognises by the fields. "Included"
means that a number is part of `prompt_tokens` or `completion_tokens`; "in addition" means that it
has to be added to them. "At the top level" means outside of the `…_details` objects.

- OpenAI, vLLM, llama.cpp, Groq: cached tokens are in `prompt_tokens_details`, and reasoning tokens
  are in `completion_tokens_details`. Both are included.
- xAI: reasoning tokens are in addition to the completion, as the total shows. The report states a
  price in ticks.
- Anthropic through a compatible endpoint: `cache_read_input_tokens` and
  `cache_creation_input_tokens` are in addition to the prompt.
- DashScope, OpenRouter: cache writes are in `prompt_tokens_details`, and are included.
- any-llm, LiteLLM: the lifetimes of cache writes are in `cache_creation_token_details` of the prompt
  details. Anthropic's fields are repeated at the top level, but are included in the prompt.
- Mistral: the details are in `prompt_token_details`, and cached tokens in `num_cached_tokens`.
  DeepSeek: cached tokens are in `prompt_cache_hit_tokens`.
- Mistral: the report of a prompt with audio has `prompt_audio_seconds`. The tokens of the audio are
  included only in the total.
- Moonshot: `cached_tokens` is at the top level. SGLang, DeepSeek at Azure: `reasoning_tokens` is at
  the top level.
- Cohere: `cached_tokens` at the top level may be larger than the prompt. Cohere bills the prompt.
- OpenAI, Gemini, SGLang: `audio_tokens` are in both details, and are included.
- OpenAI: the service tier is outside of the report. Anthropic: it is in the report.
- OpenRouter, Perplexity: the stated price is in `cost`. OpenRouter: the number of web searches is in
  `server_tool_use_details`. LiteLLM: it is in the prompt details.
"""

from typing import Any, NamedTuple

import msgspec

from tollkeeper.core.inference import UsageReport
from tollkeeper.core.prompt import FreeObject
from tollkeeper.core.usage import (
    Count,
    ImpossibleCount,
    ReportedUsage,
    all_writes,
    cached_audio_tokens,
    first_count,
    read_count,
    read_service_tier,
)
from tollkeeper.providers.usage_reports import stated_cost, ticks_in_picousd


class _Counts(msgspec.Struct, gc=False):
    """That nearly every report has."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None


# Needs none of the special rules.
_COUNTS = frozenset(_Counts.__struct_fields__)
_CACHED = ("cached_tokens", "cache_read_tokens")
_CACHED_AT_TOP = ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens")
_WRITTEN = (
    *("cache_write_tokens", "cache_creation_input_tokens", "created_cache_tokens"),
    "cache_creation_tokens",
)


def read_chat_usage(
    reported: Any, *, service_tier: str | None = None, cache_adds_to_prompt: bool = False
) -> UsageReport:
    """`service_tier` is the one named outside of the report. `cache_adds_to_prompt`: cached tokens
    are in addition to the prompt, even if the report doesn't show it."""
    try:
        counts = msgspec.convert(reported, _Counts)
        if not reported.keys() <= _COUNTS:
            usage = _read(reported, counts, service_tier)
            if cache_adds_to_prompt and usage.cached_tokens is not None:
                usage = msgspec.structs.replace(usage, cache_adds_to_prompt=True)
            return UsageReport(usage)
    except (ImpossibleCount, msgspec.ValidationError):
        if isinstance(reported, dict):
            return UsageReport(None, impossible=reported)
        return UsageReport(ReportedUsage(service_tier=service_tier))
    return UsageReport(
        ReportedUsage(
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            total_tokens=counts.total_tokens,
            service_tier=service_tier or None,
            written=reported,
        )
    )


def _read(reported: FreeObject, counts: _Counts, service_tier: str | None) -> ReportedUsage:
    prompt, completion, total = counts.prompt_tokens, counts.completion_tokens, counts.total_tokens
    prompt_details = _object(reported, "prompt_tokens_details", "prompt_token_details")
    completion_details = _object(reported, "completion_tokens_details")
    cache = _read_cache(reported, prompt_details or {}, prompt)
    reasoning = read_count((completion_details or {}).get("reasoning_tokens"))
    if reasoning is None:
        reasoning = read_count(reported.get("reasoning_tokens"))
    audio = read_count((prompt_details or {}).get("audio_tokens"))
    uncounted = _audio_in_total(reported, prompt, completion, total)
    if uncounted:
        prompt, audio = (prompt or 0) + uncounted, (audio or 0) + uncounted
    return ReportedUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total,
        cached_tokens=cache.read,
        cache_write_tokens=cache.written,
        cache_write_5m_tokens=cache.written_5m,
        cache_write_1h_tokens=cache.written_1h,
        cache_adds_to_prompt=cache.adds_to_prompt,
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
    read: int | None
    written: int | None
    # With a stated lifetime.
    written_5m: int | None
    written_1h: int | None
    # None if `read` is None and Anthropic's fields are missing or zero: the previous report
    # decides.
    adds_to_prompt: bool | None


def _read_cache(reported: FreeObject, details: FreeObject, prompt: int | None) -> _Cache:
    cached_in_details = first_count(details, _CACHED)
    top_cached = read_count(reported.get("cache_read_input_tokens"))
    top_written = read_count(reported.get("cache_creation_input_tokens"))
    top_split = _split(reported, "cache_creation")
    if cached_in_details is None and (top_cached or top_written):
        return _Cache(top_cached, all_writes(top_written, *top_split), *top_split, True)
    # OpenAI's fields. If a proxy repeats Anthropic's at the top level, they're included in the
    # prompt.
    written = first_count(details, _WRITTEN)
    if written is None:
        written = top_written
    split = _split(details, "cache_creation_token_details")
    if split == _NO_SPLIT and written is not None:
        split = top_split
    read = _cached_at_top(reported, prompt) if cached_in_details is None else cached_in_details
    return _Cache(read, all_writes(written, *split), *split, None if read is None else False)


_NO_SPLIT = (None, None)


def _split(reported: FreeObject, name: str) -> tuple[int | None, int | None]:
    """For five minutes and for one hour."""
    writes = _object(reported, name) or {}
    return (
        read_count(writes.get("ephemeral_5m_input_tokens")),
        read_count(writes.get("ephemeral_1h_input_tokens")),
    )


def _cached_at_top(reported: FreeObject, prompt: int | None) -> int | None:
    """Included in the prompt. None if they exceed it (Cohere): the prompt is billed, and cached
    tokens mustn't reduce the price."""
    count = first_count(reported, _CACHED_AT_TOP)
    return None if count is not None and prompt is not None and count > prompt else count


def _audio_in_total(
    reported: FreeObject, prompt: int | None, completion: int | None, total: int | None
) -> int:
    """Mistral's `prompt_tokens` omit audio: it's the total minus prompt and completion."""
    if total is None or not read_count(reported.get("prompt_audio_seconds")):
        return 0
    return max(0, total - (prompt or 0) - (completion or 0))


def _object(reported: FreeObject, *names: str) -> FreeObject | None:
    for name in names:
        if isinstance(value := reported.get(name), dict):
            return value
    return None


def _web_searches(reported: FreeObject, prompt_details: FreeObject) -> int | None:
    server_tools = _object(reported, "server_tool_use", "server_tool_use_details") or {}
    for container, name in (
        (server_tools, "web_search_requests"),
        (prompt_details, "web_search_requests"),
        (reported, "num_search_queries"),
    ):
        count = read_count(container.get(name))
        if count is not None:
            return count
    return None


def _cost(reported: FreeObject) -> int | None:
    ticks = ticks_in_picousd(reported.get("cost_in_usd_ticks"))
    return stated_cost(reported) if ticks is None else ticks
