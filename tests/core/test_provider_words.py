"""Tests which words of providers reach clients although no policy judges them."""

from tests.support.tables import each
from tollkeeper.core.provider_words import (
    known_counts,
    known_fingerprint,
    known_finish,
    known_service_tier,
)


@each(
    "fingerprint",
    [
        "fp_44709d6fcb",
        "fp_a1",
        "fp_8802369eaa_prod0425fp8",
        "fp_3a5790e1b4_prod0820_fp8_kvcache",
        "fp_ollama",
        "fpv0_7f12a3b",
        "b6900-1a2b3c4d",
        "3.3.5-native",
        "2.1.2-dev0-sha-7e1e9b4",
        None,
    ],
)
def test_fingerprints_of_known_form_are_kept(fingerprint: str | None) -> None:
    assert known_fingerprint(fingerprint) == fingerprint


@each(
    "fingerprint",
    ["", "bomb", "fp_bomb", "fp_how_to_mix", "fp a1", "fp_a1\n", "_".join(["fp"] * 11), "a" * 81],
)
def test_other_fingerprints_are_dropped(fingerprint: str) -> None:
    assert known_fingerprint(fingerprint) is None


def test_finish_reasons() -> None:
    known = ["stop", "length", "tool_calls", "content_filter", "function_call", "eos", "error"]
    assert [known_finish(reason) for reason in known] == known
    assert [known_finish(reason) for reason in ("bomb", "STOP a bomb", "")] == [
        "stop",
        "stop",
        None,
    ]


def test_service_tiers() -> None:
    known = ["auto", "default", "flex", "scale", "priority", "on_demand", "standard", None]
    assert [known_service_tier(tier) for tier in known] == known
    assert known_service_tier("bomb") is None


def test_names_of_counts() -> None:
    details = {"cached_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 2}}
    odd = {"bomb": 1, "cached_bomb": 2, "": 3, "audio_tokens": {"bomb": 4}}
    assert known_counts(details) == details
    assert known_counts({**details, **odd}) == {**details, "audio_tokens": {}}
