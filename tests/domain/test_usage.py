"""A backend's report of usage: believed where it can be true, otherwise nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.domain.usage import Usage, read_usage

_GOOD: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_plain_report() -> None:
    assert read_usage(_GOOD) == Usage(10, 5)
    assert read_usage({"prompt_tokens": 0, "completion_tokens": 0}) == Usage(0, 0)


def test_details() -> None:
    prompt = {"cached_tokens": 10, "audio_tokens": None}
    completion = {"reasoning_tokens": 5, "unknown": {"x": 1}}
    report = {**_GOOD, "prompt_tokens_details": prompt, "completion_tokens_details": completion}
    assert read_usage(report) == Usage(10, 5, 10, 5, prompt, completion)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, {"other": 1}, [], 5, "x"])
def test_details_that_say_nothing(details: object) -> None:
    found = read_usage({**_GOOD, "prompt_tokens_details": details})
    assert found is not None
    assert found.cached_tokens == 0


_NO_COUNTS: list[object] = [
    None,
    True,
    -1,
    1.0,
    0.5,
    "1",
    [],
    {},
    float("nan"),
    float("inf"),
    2**53 + 1,
    10**30,
]


@pytest.mark.parametrize("value", _NO_COUNTS, ids=repr)
@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
def test_absurd_count(field: str, value: object) -> None:
    report = {**_GOOD, field: value}
    del report["total_tokens"]
    assert read_usage(report) is None


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
def test_missing_count(field: str) -> None:
    assert read_usage({key: value for key, value in _GOOD.items() if key != field}) is None


@pytest.mark.parametrize("total", [14, 16, 0, -15, None, "15", 2**60, [15]])
def test_total_that_does_not_add_up(total: object) -> None:
    assert read_usage({**_GOOD, "total_tokens": total}) is None


@pytest.mark.parametrize("part", [11, -1, 1.5, "1", True])
def test_absurd_cached_tokens(part: object) -> None:
    assert read_usage({**_GOOD, "prompt_tokens_details": {"cached_tokens": part}}) is None


@pytest.mark.parametrize("part", [6, -1, 1.5, "1", True])
def test_absurd_reasoning_tokens(part: object) -> None:
    assert read_usage({**_GOOD, "completion_tokens_details": {"reasoning_tokens": part}}) is None


@pytest.mark.parametrize("report", [None, [], "x", 1, True, [_GOOD], {}])
def test_no_report(report: object) -> None:
    assert read_usage(report) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_fields = st.sampled_from(
    [*_GOOD, "prompt_tokens_details", "completion_tokens_details", "cached_tokens", "other"]
)


@given(st.dictionaries(_fields, _json | st.dictionaries(_fields, _json)))
def test_whatever_is_believed_is_plausible(report: dict[str, Any]) -> None:
    found = read_usage(report)
    if found is not None:
        for count in (found.prompt_tokens, found.completion_tokens):
            assert type(count) is int
            assert 0 <= count <= 2**53
        assert 0 <= found.cached_tokens <= found.prompt_tokens
        assert 0 <= found.reasoning_tokens <= found.completion_tokens
