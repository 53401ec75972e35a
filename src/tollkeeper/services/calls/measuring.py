"""Measures prompts without blocking the event loop."""

from functools import partial

from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt_size import PromptSize, measure_prompt, prompt_text
from tollkeeper.runtime.large_requests import run_in_thread

# A longer text takes more than a few milliseconds, and one of unusual characters takes longer.
_LONG_TEXT = 128 << 10
_LONG_UNUSUAL_TEXT = 8 << 10


async def measure(call: Call) -> PromptSize:
    """Measures the prompt, in a thread if it has much text."""
    prompt, by_bytes = call.prompt, call.model.token_bounds.text_by_bytes
    if not call.is_large:
        text = prompt_text(prompt)
        if len(text) <= (_LONG_TEXT if text.isascii() else _LONG_UNUSUAL_TEXT):
            return measure_prompt(prompt, text, by_bytes=by_bytes)
    measured = partial(measure_prompt, by_bytes=by_bytes)
    return await run_in_thread(call.organization_id.int, measured, prompt)
