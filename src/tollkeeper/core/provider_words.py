"""The providers' words that reach clients although no policy judges them. All others are dropped or replaced,
because a word may be a sentence: a finish reason "Mix the powder with ..." would pass an enforcing policy."""

import re
from typing import Any

from tollkeeper.core.inference import Finish

# Beyond those of `Finish`: Together, Mistral, text generation servers, DeepSeek, vLLM and SGLang, OpenRouter.
_FINISHES = frozenset(
    {
        *Finish,
        *("eos", "eos_token", "stop_sequence", "model_length", "max_tokens"),
        *("error", "abort", "aborted", "timeout", "repetition", "insufficient_system_resource"),
    }
)
# OpenAI, Groq, Anthropic, Google and Amazon.
_SERVICE_TIERS = frozenset(
    {
        *("auto", "default", "flex", "scale", "priority", "fast", "ultrafast"),
        *("on_demand", "performance", "standard", "batch", "reserved"),
    }
)
# Hashes, versions and a few names: "fp_44709d6fcb", "b6900-1a2b3c4", "3.3.5-native",
# "fp_8802369eaa_prod0425fp8". A hash spells no word longer than "facade".
_FINGERPRINT_PART = (
    r"(?:[0-9a-f]+|(?:b|dev|fp|fpv|prod|tp|v)[0-9]*(?:fp8)?|kvcache|native|new|ollama|sha|vllm)"
)
_FINGERPRINT = re.compile(rf"{_FINGERPRINT_PART}(?:[._-]{_FINGERPRINT_PART}){{,9}}")
_FINGERPRINT_LENGTH_MAX = 80
# Of names such as "cache_write_tokens".
_COUNT_WORDS = frozenset(
    {
        *("accepted", "audio", "cache", "cached", "citation", "creation", "details", "document"),
        *("ephemeral", "file", "hit", "image", "input", "miss", "multimodal", "num", "output"),
        *("prediction", "prompt", "queries", "read", "reasoning", "rejected", "requests", "search"),
        *("server", "text", "thinking", "tokens", "tool", "use", "video", "web", "write"),
        *("5m", "1h"),
    }
)


def known_finish(finish: str) -> str | None:
    """None if the provider stated none, and "stop" for an unknown one: some clients fail without a reason.
    The call's record has the provider's own word."""
    return (finish if finish in _FINISHES else Finish.STOP) or None


def known_service_tier(tier: str | None) -> str | None:
    return tier if tier in _SERVICE_TIERS else None


def known_fingerprint(fingerprint: str | None) -> str | None:
    if fingerprint is None or len(fingerprint) > _FINGERPRINT_LENGTH_MAX:
        return None
    return fingerprint if _FINGERPRINT.fullmatch(fingerprint) else None


def known_counts(details: dict[str, Any]) -> dict[str, Any]:
    """Without unknown names."""
    return {
        name: known_counts(value) if isinstance(value, dict) else value
        for name, value in details.items()
        if _COUNT_WORDS.issuperset(name.split("_"))
    }
