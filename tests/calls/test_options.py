"""Tests that a request is rejected if it needs a feature that the model does not declare, and that the
error names the place."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.backend_calls import MODEL, make_prompt
from tests.support.tables import each
from tollkeeper.calls.options import output_limit, require_supported
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, OptionUnsupported

WIDE = replace(
    MODEL,
    input_modalities=("text", "image", "audio", "video", "file"),
    output_modalities=("text", "audio"),
    supported_features=(
        *("tools", "json_mode", "structured_outputs", "logprobs", "reasoning", "web_search"),
    ),
    supported_sampling_parameters=("temperature", "seed"),
    options={"verbosity": "verbosity"},
)
FUNCTION = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
NEEDS: list[tuple[dict[str, Any], str, Model]] = [
    ({"temperature": 1}, "temperature", replace(WIDE, supported_sampling_parameters=())),
    ({"tools": [{}]}, "tools", replace(WIDE, supported_features=())),
    ({"functions": [{}]}, "functions", replace(WIDE, supported_features=())),
    ({"response_format": SCHEMA}, "response_format", replace(WIDE, supported_features=("tools",))),
    (
        {"response_format": {"type": "json_object"}},
        "response_format",
        replace(WIDE, supported_features=("structured_outputs",)),
    ),
    ({"logprobs": True}, "logprobs", replace(WIDE, supported_features=())),
    ({"web_search_options": {}}, "web_search_options", replace(WIDE, supported_features=())),
    *(
        (
            {"tools": [FUNCTION, {"type": kind, kind: {}}]},
            "tools[1]",
            replace(WIDE, supported_features=("tools",)),
        )
        # OpenRouter, xAI and Anthropic run these searches themselves, and charge for them.
        for kind in ("openrouter:web_search", "live_search", "web_search_20250305", "web_search")
    ),
    (
        {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]},
        "tools[0]",
        replace(WIDE, supported_features=("tools",)),
    ),
    ({"reasoning_effort": "low"}, "reasoning_effort", replace(WIDE, supported_features=())),
    ({"include_reasoning": True}, "include_reasoning", replace(WIDE, supported_features=())),
    ({"verbosity": "low"}, "verbosity", replace(WIDE, options={})),
    (
        {"modalities": ["text", "audio"]},
        "modalities[1]",
        replace(WIDE, output_modalities=("text",)),
    ),
]


@each(("fields", "param", "narrow"), NEEDS)
def test_what_a_model_does_not_declare(fields: dict[str, Any], param: str, narrow: Model) -> None:
    prompt = make_prompt(**fields)
    require_supported(WIDE, prompt)
    with pytest.raises(OptionUnsupported) as refused:
        require_supported(narrow, prompt)
    assert refused.value.param == param


def test_tools_that_the_caller_runs_need_no_search() -> None:
    for tool in ({"type": "custom", "custom": {"name": "c"}}, {"type": "function"}, {}, FUNCTION):
        require_supported(replace(WIDE, supported_features=("tools",)), make_prompt(tools=[tool]))


PROVIDER_TOOLS: list[tuple[str, dict[str, Any]]] = [
    *(
        (kind, {"type": kind, kind: {}})
        for kind in ("openrouter:advisor", "browser_search", "code_interpreter", "mcp", "x_search")
    ),
    ("openrouter:advisor", {"type": "openrouter:advisor", "function": {"name": "web_search"}}),
    ("$other", {"type": "builtin_function", "function": {"name": "$other"}}),
    ("builtin_function", {"type": "builtin_function"}),
    ("googleSearch", {"googleSearch": {}}),
    ("7", {"type": 7}),
]


@each(("name", "tool"), PROVIDER_TOOLS)
def test_a_provider_tool_needs_a_price_by_its_name(name: str, tool: dict[str, Any]) -> None:
    prompt = make_prompt(tools=[FUNCTION, {"type": "web_search"}, tool])
    for prices in ({}, {"web_search": 1}):
        with pytest.raises(OptionUnsupported, match="has no price") as refused:
            require_supported(replace(WIDE, tool_prices=prices), prompt)
        assert refused.value.param == "tools[2]"
    require_supported(replace(WIDE, tool_prices={name: 0}), prompt)


def test_a_refusal_says_what_the_model_has() -> None:
    with pytest.raises(OptionUnsupported, match=r"has no web_search\. Its features: tools\."):
        require_supported(
            replace(WIDE, supported_features=("tools",)), make_prompt(web_search_options={})
        )


MEDIA = {
    "image": {"type": "image_url", "image_url": "u"},
    "audio": {"type": "audio_url", "audio_url": "u"},
    "video": {"type": "video_url", "video_url": "u"},
    "file": {"type": "file", "file": {"file_data": "d"}},
}


@each("modality", MEDIA)
@each("role", ["user", "tool", "assistant"])
def test_no_part_passes_a_model_that_cannot_take_it(modality: str, role: str) -> None:
    text = {"type": "text", "text": "a"}
    prompt = make_prompt(messages=[{"role": role, "content": [text, MEDIA[modality]]}])
    require_supported(WIDE, prompt)
    others = tuple(name for name in WIDE.input_modalities if name != modality)
    with pytest.raises(OptionUnsupported) as refused:
        require_supported(replace(WIDE, input_modalities=others), prompt)
    assert refused.value.param == "messages[0].content[1]"


def test_the_output_limit() -> None:
    model = replace(MODEL, max_output_length=2000)
    assert output_limit(None, model, param="p") == 1024
    assert output_limit(None, replace(model, max_output_length=5), param="p") == 5
    assert output_limit(2000, model, param="p") == 2000
    with pytest.raises(InvalidRequest) as refused:
        output_limit(2001, model, param="max_tokens")
    assert refused.value.param == "max_tokens"
