"""Tests lists of allowed models: which models an entry matches, and which lists are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.allowed_models import (
    ENTRIES_MAX,
    allows,
    checked_entries,
    require_matches,
    unmatched,
)
from tollkeeper.core.errors import InvalidRequest

ids = st.text("ab/*", min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("entries", "model_id", "allowed"),
    [
        ((), "gpt-5", True),
        (("gpt-5",), "gpt-5", True),
        (("gpt-5",), "gpt-5-mini", False),
        (("gpt-5",), "GPT-5", False),
        (("gpt-5",), "openai/gpt-5", False),
        (("claude-*",), "claude-sonnet", True),
        (("claude-*",), "claude-", True),
        (("claude-*",), "claude", False),
        (("claude-*",), "eu.claude-sonnet", False),
        (("a.c*",), "abcd", False),
        (("*",), "anything", True),
        (("gpt-5", "claude-*"), "claude-opus", True),
    ],
)
def test_matching(entries: tuple[str, ...], model_id: str, allowed: bool) -> None:
    assert allows(entries, model_id) is allowed


@given(st.lists(ids, min_size=1, max_size=4), ids)
def test_matching_is_equality_or_a_beginning(entries: list[str], model_id: str) -> None:
    begins = [entry[:-1] for entry in entries if entry[-1] == "*"]
    expected = model_id in entries or any(
        model_id[: len(beginning)] == beginning for beginning in begins
    )
    assert allows(entries, model_id) is expected


def test_entries_without_a_model_are_named() -> None:
    entries = ("gpt-5", "gpt-*", "claude-*", "o3")
    assert unmatched(entries, ["gpt-5-mini", "o3"]) == ["gpt-5", "claude-*"]
    assert unmatched((), ["o3"]) == []
    with pytest.raises(InvalidRequest, match=r"matches gpt-5, claude-\*\."):
        require_matches(entries, ["gpt-5-mini", "o3"])
    require_matches(("gpt-*", "o3"), ["gpt-5-mini", "o3"])
    require_matches((), [])


@pytest.mark.parametrize(
    "entries",
    [
        [],
        ["*"],
        ["claude-*", "@cf/meta/llama-3.1-8b", "qwen2.5:7b", "Modell-ä"],
        ["m" * 200],
        [f"model-{number}" for number in range(ENTRIES_MAX)],
    ],
)
def test_lists_that_are_taken(entries: list[str]) -> None:
    assert checked_entries(entries) == tuple(entries)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([""], "1 to 200 characters"),
        (["m" * 201], "1 to 200 characters"),
        (["gpt 5"], "a space, a comma or a control character"),
        (["gpt,5"], "a space, a comma or a control character"),
        (["gpt\t5"], "a space, a comma or a control character"),
        (["gpt\x005"], "a space, a comma or a control character"),
        (["*-mini"], "not at its end"),
        (["gpt-**"], "not at its end"),
        (["gpt-5", "gpt-5"], "twice"),
        ([f"model-{number}" for number in range(ENTRIES_MAX + 1)], "at most 100"),
    ],
)
def test_lists_that_are_refused(entries: list[str], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        checked_entries(entries)
    assert refused.value.param == "models"
