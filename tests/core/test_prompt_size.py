"""Tests the upper bound of a prompt's size: every text counts, and media of unknown size fill the context."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import jinja2
import msgspec

from tests.support.backend_calls import MODEL, make_prompt
from tests.support.tables import each
from tollkeeper.core.catalog import TokenBounds
from tollkeeper.core.estimate import estimate_tokens
from tollkeeper.core.prompt import Option, Prompt
from tollkeeper.core.prompt_size import measure_prompt

# The chat templates of Llama 3 and 4 print tools like this.
LLAMA = "{%- for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}"
LONG = "and so on " * 300
PLACES: dict[str, dict[str, Any]] = {
    "content": {"messages": [{"role": "user", "content": LONG}]},
    "part": {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
    "beside": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": [LONG]}]}]
    },
    "beside an image": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": "u", "x": LONG}]}
        ]
    },
    "name": {"messages": [{"role": "user", "content": "a", "name": LONG}]},
    "call id": {"messages": [{"role": "tool", "content": "a", "tool_call_id": LONG}]},
    "stray id": {"messages": [{"role": "user", "content": "a", "tool_call_id": LONG}]},
    "reasoning": {"messages": [{"role": "assistant", "content": "a", "reasoning": LONG}]},
    "call": {"messages": [{"role": "assistant", "tool_calls": [{"odd": LONG}]}]},
    "tool": {"tools": [{"odd": LONG}]},
    "format": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"description": LONG}},
        }
    },
}


@each("place", PLACES)
def test_every_text_counts_once(place: str) -> None:
    tokens = estimate_tokens(LONG)
    assert tokens <= measure_prompt(make_prompt(**PLACES[place])).text_tokens <= tokens + 100


def test_line_breaks_between_texts_count() -> None:
    """A server or the gateway joins the texts of a message by line breaks."""
    texts = ["a"] * 100
    content = [{"type": "text", "text": text} for text in texts]
    prompt = make_prompt(messages=[{"role": "user", "content": content}])
    assert measure_prompt(prompt).text_bytes >= len("\n".join(texts))


@each("place", PLACES)
def test_the_texts_of_a_chat_request_are_those_of_its_turns(place: str) -> None:
    """The chat protocol passes the texts to the prompt. Other protocols let the prompt find them."""
    prompt = make_prompt(**PLACES[place])
    found = Prompt(turns=prompt.turns)
    assert (prompt.texts, prompt.media) == (found.texts, found.media)


def test_a_prompt_with_other_turns_has_their_texts_and_media() -> None:
    turns = {place: make_prompt(**PLACES[place]).turns for place in ("content", "beside an image")}
    text, image = (Prompt(turns=those) for those in turns.values())
    assert (text.texts, len(text.media)) == ((LONG,), 0)
    assert (image.texts, len(image.media)) == (None, 1)
    assert text.with_turns(image.turns) == image
    assert image.with_turns(text.turns) == text


def test_images_have_a_bound_of_their_own() -> None:
    image = {"type": "image_url", "image_url": "data:image/png;base64," + "A" * 100_000}
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": [image] * 3}]))
    assert (size.images, size.text_tokens < 100) == (3, True)
    wide = replace(MODEL, context_length=10**6)
    assert size.bound(wide) == size.text_tokens + 96 + 3 * 48_169
    small = replace(wide, token_bounds=TokenBounds(image=100, template=0))
    assert size.bound(small) == size.text_tokens + 300
    assert size.bound(replace(MODEL, context_length=1000)) == 1000


def test_a_tokenizers_count_never_replaces_the_media() -> None:
    image = {"type": "image_url", "image_url": "u"}
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": [image]}]))
    assert size.bound(replace(MODEL, context_length=10**6), counted=5) == 5 + 48_169
    assert measure_prompt(make_prompt()).bound(MODEL, counted=5) == 5


def test_tools_cost_what_a_template_says_about_them() -> None:
    tools = measure_prompt(make_prompt(tools=[{"function": {"name": "f"}}]))
    assert tools.bound(MODEL) == tools.text_tokens + 96 + 804


MEDIA: dict[str, dict[str, Any]] = {
    "audio": {"type": "input_audio", "input_audio": {"data": "AA"}},
    "video": {"type": "video_url", "video_url": "u"},
    "file": {"type": "file", "file": {"file_data": "AAAA"}},
}


def _bounds(kind: str) -> TokenBounds:
    tokens: dict[str, Any] = {kind: 7}
    return TokenBounds(**tokens)


@each("kind", MEDIA)
def test_other_media_may_fill_the_context(kind: str) -> None:
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": [MEDIA[kind]] * 2}]))
    assert size.bound(MODEL) == size.bound(MODEL, counted=1) == MODEL.context_length
    declared = replace(MODEL, token_bounds=_bounds(kind))
    assert size.bound(declared, counted=1) == 15


def test_what_a_search_finds_may_fill_the_context() -> None:
    """This is also true if searches have a price, because most backends charge for both."""
    size = measure_prompt(make_prompt(web_search_options={}))
    assert size.bound(MODEL) == MODEL.context_length
    priced = replace(MODEL, pricing=replace(MODEL.pricing, web_search=1))
    assert size.bound(priced, counted=5) == MODEL.context_length
    assert size.web_searches == 10
    declared = replace(priced, token_bounds=TokenBounds(web_search=8))
    assert size.bound(declared, counted=5) == 5 + 10 * 8


def test_a_prompt_that_is_read_again_after_each_search_is_held_as_often() -> None:
    """The provider charges for each reading, so the hold may exceed the context."""
    size = measure_prompt(make_prompt(web_search_options={}))
    bounds = TokenBounds(search_rereads_prompt=True)
    model = replace(MODEL, context_length=1000, token_bounds=bounds)
    assert size.bound(model, counted=5) == 1000
    assert size.hold_bound(model, counted=5) == 5 + 10 * 1000
    # The prompt has 5, 13, 21 and so on up to 85 tokens.
    declared = replace(model, token_bounds=replace(bounds, web_search=8))
    assert size.hold_bound(declared, counted=5) == 11 * 5 + 8 * 55
    # The prompt has 5, 305, 605 and 905 tokens, and then fills the context.
    wide = replace(model, token_bounds=replace(bounds, web_search=300))
    assert size.hold_bound(wide, counted=5) == 5 + 305 + 605 + 905 + 7 * 1000
    # The call has no search, or the provider does not charge for further readings.
    assert measure_prompt(make_prompt()).hold_bound(model, counted=5) == 5
    once = replace(model, token_bounds=TokenBounds(web_search=0))
    assert size.hold_bound(once, counted=5) == 5


@each(("allowed", "held"), [(1, 10), (10, 10), (25, 25), (10**18, 1000), (True, 10), ("25", 10)])
def test_a_caller_may_allow_more_searches(allowed: object, held: int) -> None:
    option = Option("max_tool_calls", allowed, "max_tool_calls")
    prompt = msgspec.structs.replace(make_prompt(web_search_options={}), options=(option,))
    size = measure_prompt(prompt)
    assert size.web_searches == held
    bounds = TokenBounds(search_rereads_prompt=True)
    model = replace(MODEL, context_length=1000, token_bounds=bounds)
    assert size.hold_bound(model, counted=5) == 5 + held * 1000
    without_search = msgspec.structs.replace(make_prompt(), options=(option,))
    assert measure_prompt(without_search).web_searches == 0


@each("kind", MEDIA)
def test_what_may_be_audio_is_bounded(kind: str) -> None:
    asked = [{"type": "text", "text": "What is this?"}, *[MEDIA[kind]] * 2]
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": asked}]))
    assert size.audio_bound(MODEL, MODEL.context_length) == MODEL.context_length
    declared = replace(MODEL, token_bounds=_bounds(kind))
    assert size.audio_bound(declared, size.bound(declared, counted=5)) == 14
    assert measure_prompt(make_prompt()).audio_bound(MODEL, 100) == 0


def test_a_tool_that_the_provider_runs_is_held_for_like_a_search() -> None:
    """Otherwise, a call could cost far more than its hold."""
    searching = measure_prompt(make_prompt(tools=[{"type": "web_search", "web_search": {}}]))
    assert searching.web_searches == 10
    assert searching.bound(MODEL) == MODEL.context_length
    for tool in ({"type": "custom", "custom": {"name": "c"}}, {}):
        assert measure_prompt(make_prompt(tools=[tool])).web_searches == 0


def test_a_hold_may_be_by_bytes_and_an_estimate_is_not() -> None:
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": "etaoin" * 100}]))
    by_bytes = replace(MODEL, token_bounds=TokenBounds(text_by_bytes=True, template=0))
    assert 600 <= size.text_bytes == size.hold_bound(by_bytes) < 700
    assert size.bound(by_bytes) == size.text_tokens < 300
    # A tokenizer's count replaces both.
    assert size.hold_bound(by_bytes, counted=150) == 150
    searching = msgspec.structs.replace(size, web_searches=10)
    rereading = TokenBounds(
        text_by_bytes=True, template=0, web_search=10, search_rereads_prompt=True
    )
    found = searching.hold_bound(replace(MODEL, token_bounds=rereading))
    assert found == sum(size.text_bytes + 10 * known for known in range(11))


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "filters": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    name: {"type": "object", "properties": {"a": {"enum": ["x", "y", "<é😀>"]}}}
                    for name in ("b", "c", "d & 'e'")
                },
            },
        }
    },
}


@each("escapes", [False, True], ids=["plain", "html"])
@each("template", ["{{ tools | tojson(indent=4) }}", LLAMA], ids=["list", "each"])
def test_bytes_bound_a_template_that_indents_tools(template: str, escapes: bool) -> None:
    """The templates of Llama 3 and 4 print each tool with an indentation of four spaces."""
    function = {"name": "f", "description": "Finds é.", "parameters": NESTED}
    prompt = make_prompt(tools=[{"type": "function", "function": function}] * 3)
    environment = jinja2.Environment(autoescape=False)
    if not escapes:
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    printed = environment.from_string(template).render(
        tools=[tool.described() for tool in prompt.tools]
    )
    wide = replace(MODEL, context_length=10**6)
    model = replace(wide, token_bounds=TokenBounds(text_by_bytes=True, template=0, tools=0))
    held = measure_prompt(prompt, model.token_bounds).hold_bound(model)
    compact = measure_prompt(prompt).hold_bound(model)
    assert compact < len(printed.encode()) <= held


def test_a_model_that_searches_on_its_own_is_always_held_for_its_searches() -> None:
    size = measure_prompt(make_prompt())
    assert size.sent_to(MODEL) is size
    model = replace(MODEL, token_bounds=TokenBounds(unrequested_searches_max=40))
    found = size.sent_to(model)
    assert (found.web_searches, found.bound(model)) == (40, MODEL.context_length)
    assert not found.is_text_only
    # A request may allow more searches than the model makes by itself.
    asked = msgspec.structs.replace(size, web_searches=50)
    assert asked.sent_to(model).web_searches == 50


@each(("tool", "held"), [({"max_uses": 25}, 25), ({"max_uses": "25"}, 10)])
def test_a_tool_may_allow_more_searches(tool: dict[str, Any], held: int) -> None:
    prompt = make_prompt(tools=[{"type": "web_search", **tool}])
    assert measure_prompt(prompt).web_searches == held
