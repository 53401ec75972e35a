"""How large a prompt may be: every text counts, and media that nobody can measure fill the context."""

from typing import Any

import pytest

from tests.support.backend_calls import make_prompt
from tollkeeper.domain.estimate import estimate_tokens
from tollkeeper.domain.prompt_size import TOKENS_PER_IMAGE, measure_prompt

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


@pytest.mark.parametrize("place", PLACES)
def test_every_text_counts_once(place: str) -> None:
    tokens = estimate_tokens(LONG)
    assert tokens <= measure_prompt(make_prompt(**PLACES[place])).text_tokens <= tokens + 100


def test_images_have_a_bound_of_their_own() -> None:
    image = {"type": "image_url", "image_url": "data:image/png;base64," + "A" * 100_000}
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": [image] * 3}]))
    assert (size.images, size.text_tokens < 100) == (3, True)
    assert size.bound(100_000) == size.text_tokens + 3 * TOKENS_PER_IMAGE
    assert size.bound(1000) == 1000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": "u"},
        {"type": "input_audio", "input_audio": {"data": "AA"}},
        {"type": "video_url", "video_url": "u"},
        {"type": "file", "file": {"file_data": "AAAA"}},
    ],
)
def test_other_media_may_fill_the_context(part: dict[str, Any]) -> None:
    size = measure_prompt(make_prompt(messages=[{"role": "user", "content": [part]}]))
    assert size.bound(12345) == 12345
