"""Measures prompts without keeping the event loop from others."""

import asyncio

from tollkeeper.domain.estimate import estimate_tokens
from tollkeeper.domain.prompt import Prompt
from tollkeeper.domain.prompt_size import PromptSize, measure_prompt, prompt_text

# A longer text takes more than a few milliseconds.
_LONG_TEXT = 128 << 10


async def measure(prompt: Prompt) -> PromptSize:
    """The prompt's size. A long text is estimated in a thread, slice by slice."""
    text = prompt_text(prompt)
    if len(text) > _LONG_TEXT:
        return measure_prompt(prompt, await asyncio.to_thread(estimate_tokens, text))
    return measure_prompt(prompt, estimate_tokens(text))
