"""Measures the size of prompts without blocking the event loop."""

from functools import partial

from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt_size import PromptSize, measure_prompt, prompt_text
from tollkeeper.runtime.large_requests import run_in_thread

# The lengths in characters above which measuring a text takes more than a few milliseconds. A text
# with non-ASCII characters takes longer.
_LONG_ASCII_TEXT = 128 << 10
_LONG_NON_ASCII_TEXT = 8 << 10


async def measure(call: Call) -> PromptSize:
    """Returns the size of the prompt. Measures long text in a thread."""
    prompt, by_bytes = call.prompt, call.model.token_bounds.text_by_bytes
    if not call.is_large:
        text = prompt_text(prompt)
        if len(text) <= (_LONG_ASCII_TEXT if text.isascii() else _LONG_NON_ASCII_TEXT):
            return measure_prompt(prompt, text, by_bytes=by_bytes)
    measure_in_thread = partial(measure_prompt, by_bytes=by_bytes)
    return await run_in_thread(call.organization_id.int, measure_in_thread, prompt)
