"""Usage as chat servers report it. One reader for all of them: where their dialects differ, the
report itself shows which one it is.

- OpenAI, vLLM, llama.cpp, Groq: cached tokens in `prompt_tokens_details` and reasoning in
  `completion_tokens_details`, both inside the counts.
- xAI: reasoning beside the completion, which the total shows; a price in ticks.
- Anthropic through a compatible endpoint: `cache_read_input_tokens` and
  `cache_creation_input_tokens` beside the prompt.
- DashScope, OpenRouter: cache writes in `prompt_tokens_details`, inside the prompt.
- any-llm, LiteLLM: the lifetimes of those in `cache_creation_token_details` there.
- Mistral: `prompt_token_details`, `num_cached_tokens`. DeepSeek: `prompt_cache_hit_tokens`.
- Moonshot: `cached_tokens` at the top. SGLang, DeepSeek at Azure: `reasoning_tokens` at the top.
- OpenAI: `audio_tokens` in both details, inside the counts; Gemini's and SGLang's are the same.
- OpenAI: the service tier beside the report. Anthropic: in it.
- OpenRouter, Perplexity: `cost`. OpenRouter: searches in `server_tool_use_details`.
"""

from typing import Annotated, Any

import msgspec

from tollkeeper.backends.reported_cost import ticks_in_picousd, usd_in_picousd
from tollkeeper.domain.inference import UsageReport
from tollkeeper.domain.prompt import FreeObject
from tollkeeper.domain.usage import (
    COUNT_MAX,
    AbsurdCount,
    ReportedUsage,
    cached_audio_tokens,
    read_count,
    read_service_tier,
)

_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] | None


class _PlainPromptDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: _Count = None
    audio_tokens: _Count = None


class _PlainCompletionDetails(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: _Count = None
    audio_tokens: _Count = None
    accepted_prediction_tokens: _Count = None
    rejected_prediction_tokens: _Count = None


class _PlainReport(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A report with OpenAI's own fields only, as most servers send it. Any other is read by
    `_read`, which understands this one as well and takes several times as long."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    total_tokens: _Count = None
    prompt_tokens_details: _PlainPromptDetails | None = None
    completion_tokens_details: _PlainCompletionDetails | None = None


_CACHED = ("cached_tokens", "cache_read_tokens")
_CACHED_AT_TOP = ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens", "created_cache_tokens")


def read_chat_usage(reported: Any, *, service_tier: str | None = None) -> UsageReport:
    """A report that is no object says nothing. One with a count that can be none is absurd.
    `service_tier` is what the answer names beside its report."""
    if not isinstance(reported, dict):
        return UsageReport(ReportedUsage(service_tier=service_tier))
    try:
        plain = msgspec.convert(reported, _PlainReport)
    except msgspec.ValidationError:
        pass
    else:
        return UsageReport(_read_plain(plain, reported, service_tier))
    try:
        return UsageReport(_read(reported, service_tier))
    except AbsurdCount:
        return UsageReport(None, absurd=reported)


def _read_plain(
    plain: _PlainReport, reported: FreeObject, service_tier: str | None
) -> ReportedUsage:
    prompt, completion = plain.prompt_tokens_details, plain.completion_tokens_details
    cached = None if prompt is None else prompt.cached_tokens
    return ReportedUsage(
        prompt_tokens=plain.prompt_tokens,
        completion_tokens=plain.completion_tokens,
        total_tokens=plain.total_tokens,
        cached_tokens=cached,
        cache_is_beside_prompt=None if cached is None else False,
        reasoning_tokens=None if completion is None else completion.reasoning_tokens,
        input_audio_tokens=None if prompt is None else prompt.audio_tokens,
        output_audio_tokens=None if completion is None else completion.audio_tokens,
        service_tier=service_tier or None,
        prompt_details=None if prompt is None else reported["prompt_tokens_details"],
        completion_details=None if completion is None else reported["completion_tokens_details"],
        written=reported,
    )


def _read(reported: FreeObject, service_tier: str | None) -> ReportedUsage:
    prompt_details = _object(reported, "prompt_tokens_details", "prompt_token_details")
    completion_details = _object(reported, "completion_tokens_details")
    inside = _first(prompt_details or {}, _CACHED)
    beside_read = read_count(reported.get("cache_read_input_tokens"))
    beside_written = read_count(reported.get("cache_creation_input_tokens"))
    # Proxies repeat the counts of Anthropic beside those of OpenAI: then they are inside.
    is_beside = inside is None and (beside_read or beside_written)
    lifetimes = _object(reported, "cache_creation") or {}
    written_1h = read_count(lifetimes.get("ephemeral_1h_input_tokens"))
    written = _first(prompt_details or {}, _WRITTEN)
    if is_beside:
        written = beside_written or 0
    else:
        # Libraries put the lifetimes of Anthropic's cache writes among the details of the prompt.
        inside_lifetimes = _object(prompt_details or {}, "cache_creation_token_details") or {}
        written_1h = read_count(inside_lifetimes.get("ephemeral_1h_input_tokens"))
    if written is not None:
        written -= min(written_1h or 0, written)
    cached = _first(reported, _CACHED_AT_TOP) if inside is None else inside
    reasoning = read_count((completion_details or {}).get("reasoning_tokens"))
    if reasoning is None:
        reasoning = read_count(reported.get("reasoning_tokens"))
    return ReportedUsage(
        prompt_tokens=read_count(reported.get("prompt_tokens")),
        completion_tokens=read_count(reported.get("completion_tokens")),
        total_tokens=read_count(reported.get("total_tokens")),
        cached_tokens=beside_read if is_beside else cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=written_1h,
        # A report without any cache leaves it to the one before.
        cache_is_beside_prompt=bool(is_beside) if is_beside or cached is not None else None,
        reasoning_tokens=reasoning,
        web_searches=_web_searches(reported),
        input_audio_tokens=read_count((prompt_details or {}).get("audio_tokens")),
        cached_audio_tokens=cached_audio_tokens(prompt_details),
        output_audio_tokens=read_count((completion_details or {}).get("audio_tokens")),
        service_tier=service_tier or read_service_tier(reported),
        cost_picousd=_cost(reported),
        prompt_details=prompt_details,
        completion_details=completion_details,
        written=reported,
    )


def _object(reported: FreeObject, *names: str) -> FreeObject | None:
    for name in names:
        if isinstance(found := reported.get(name), dict):
            return found
    return None


def _first(reported: FreeObject, names: tuple[str, ...]) -> int | None:
    for name in names:
        count = read_count(reported.get(name))
        if count is not None:
            return count
    return None


def _web_searches(reported: FreeObject) -> int | None:
    server_tools = _object(reported, "server_tool_use", "server_tool_use_details") or {}
    count = read_count(server_tools.get("web_search_requests"))
    return count if count is not None else read_count(reported.get("num_search_queries"))


def _cost(reported: FreeObject) -> int | None:
    ticks = ticks_in_picousd(reported.get("cost_in_usd_ticks"))
    if ticks is not None:
        return ticks
    cost = reported.get("cost")
    return usd_in_picousd(cost.get("total_cost") if isinstance(cost, dict) else cost)
