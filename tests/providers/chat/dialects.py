"""Usage reports of different chat servers, and the token counts that the gateway must read from them."""

from typing import Any

PLAIN: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

# By dialect: the report, and its tokens (uncached, cache read, cache write, output, reasoning).
# The output includes the reasoning.
DIALECTS: dict[str, tuple[dict[str, Any], tuple[int, int, int, int, int]]] = {
    "plain": (PLAIN, (10, 0, 0, 5, 0)),
    "no total": ({"prompt_tokens": 10, "completion_tokens": 5}, (10, 0, 0, 5, 0)),
    "total too small": ({**PLAIN, "total_tokens": 12}, (10, 0, 0, 5, 0)),
    "OpenAI": (
        {
            **PLAIN,
            "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": None},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        (2, 8, 0, 5, 2),
    ),
    "a library: cache writes by lifetime": (
        {
            "prompt_tokens": 152,
            "completion_tokens": 5,
            "total_tokens": 157,
            "prompt_tokens_details": {
                "cached_tokens": 40,
                "cache_write_tokens": 100,
                "cache_creation_token_details": {
                    "ephemeral_5m_input_tokens": 60,
                    "ephemeral_1h_input_tokens": 40,
                },
            },
        },
        (12, 40, 100, 5, 0),
    ),
    "xAI: reasoning is additive": (
        {
            "prompt_tokens": 12,
            "completion_tokens": 2,
            "total_tokens": 354,
            "completion_tokens_details": {"reasoning_tokens": 340},
        },
        (12, 0, 0, 342, 340),
    ),
    "xAI: more cached than prompt": (
        {**PLAIN, "prompt_tokens_details": {"cached_tokens": 30}},
        (10, 30, 0, 5, 0),
    ),
    "xAI: more cached than prompt, which the total has": (
        {
            "prompt_tokens": 4142,
            "completion_tokens": 254,
            "total_tokens": 8724,
            "prompt_tokens_details": {"cached_tokens": 4328},
        },
        (4142, 4328, 0, 254, 0),
    ),
    "xAI: more cached than prompt, additive reasoning, and a total without what was cached": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 2,
            "total_tokens": 352,
            "prompt_tokens_details": {"cached_tokens": 30},
            "completion_tokens_details": {"reasoning_tokens": 340},
        },
        (10, 30, 0, 342, 340),
    ),
    "xAI: more cached than prompt, additive reasoning, and a total with all of it": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 2,
            "total_tokens": 382,
            "prompt_tokens_details": {"cached_tokens": 30},
            "completion_tokens_details": {"reasoning_tokens": 340},
        },
        (10, 30, 0, 342, 340),
    ),
    "more cached than prompt, and reasoning inside": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 50,
            "total_tokens": 90,
            "prompt_tokens_details": {"cached_tokens": 30},
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        (10, 30, 0, 50, 30),
    ),
    "a proxy that drops thoughts": (
        {
            "prompt_tokens": 21,
            "completion_tokens": 0,
            "total_tokens": 81,
            "completion_tokens_details": {"reasoning_tokens": 60},
        },
        (21, 0, 0, 60, 60),
    ),
    "Anthropic beside the prompt": (
        {**PLAIN, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 40},
        (10, 100, 40, 5, 0),
    ),
    "Anthropic beside a longer prompt": (
        {"prompt_tokens": 200, "completion_tokens": 5, "cache_read_input_tokens": 100},
        (200, 100, 0, 5, 0),
    ),
    "Anthropic, by lifetime": (
        {
            **PLAIN,
            "cache_creation_input_tokens": 40,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30},
        },
        (10, 0, 40, 5, 0),
    ),
    "a proxy that repeats Anthropic's counts": (
        {
            "prompt_tokens": 150,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 100},
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 40,
        },
        (10, 100, 40, 5, 0),
    ),
    "LiteLLM before Anthropic": (
        {
            "prompt_tokens": 152,
            "completion_tokens": 5,
            "total_tokens": 157,
            "prompt_tokens_details": {
                "cached_tokens": 40,
                "cache_creation_tokens": 100,
                "text_tokens": 12,
            },
            "cache_read_input_tokens": 40,
            "cache_creation_input_tokens": 100,
        },
        (12, 40, 100, 5, 0),
    ),
    "Cohere: more cached than billed": (
        {
            "prompt_tokens": 2406,
            "completion_tokens": 7,
            "total_tokens": 2413,
            "cached_tokens": 2928,
        },
        (2406, 0, 0, 7, 0),
    ),
    "Mistral: seconds of audio, whose tokens only the total has": (
        {
            "prompt_tokens": 4,
            "completion_tokens": 635,
            "total_tokens": 3264,
            "prompt_audio_seconds": 203,
        },
        (2629, 0, 0, 635, 0),
    ),
    "Mistral: no audio": (
        {**PLAIN, "total_tokens": 20, "prompt_audio_seconds": None},
        (10, 0, 0, 10, 0),
    ),
    "DashScope": (
        {
            **PLAIN,
            "prompt_tokens_details": {"cached_tokens": 2, "cache_creation_input_tokens": 3},
        },
        (5, 2, 3, 5, 0),
    ),
    "OpenRouter: more reasoning than completion": (
        {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 6}},
        (10, 0, 0, 5, 5),
    ),
    "OpenRouter: cache write": (
        {**PLAIN, "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 7}},
        (3, 0, 7, 5, 0),
    ),
    "Mistral": ({**PLAIN, "prompt_token_details": {"cached_tokens": 4}}, (6, 4, 0, 5, 0)),
    "Mistral, at the top": ({**PLAIN, "num_cached_tokens": 4}, (6, 4, 0, 5, 0)),
    "DeepSeek": (
        {**PLAIN, "prompt_cache_hit_tokens": 9, "prompt_cache_miss_tokens": 1},
        (1, 9, 0, 5, 0),
    ),
    "Moonshot": ({**PLAIN, "cached_tokens": 6}, (4, 6, 0, 5, 0)),
    "SGLang": (
        {**PLAIN, "reasoning_tokens": 3, "prompt_tokens_details": None},
        (10, 0, 0, 5, 3),
    ),
}
