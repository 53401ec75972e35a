"""Measures prompts without keeping the event loop from others."""

import asyncio

from tollkeeper.domain.estimate import estimate_tokens
from tollkeeper.domain.prompt import Prompt
from tollkeeper.domain.prompt_size import PromptSize, measure_prompt, prompt_text

# A longer text takes more than a few milliseconds.
_LONG_TEXT = 128 << 10


def measure_short(prompt: Prompt) -> PromptSize | None:
    """The size of a prompt with little text; None where `measure` has to be awaited."""
    text = prompt_text(prompt)
    return None if len(text) > _LONG_TEXT else measure_prompt(prompt, estimate_tokens(text))


async def measure(prompt: Prompt) -> PromptSize:
    """The prompt's size. A long text is estimated in a thread, slice by slice."""
    size = measure_short(prompt)
    if size is None:
        tokens = await asyncio.to_thread(estimate_tokens, prompt_text(prompt))
        size = measure_prompt(prompt, tokens)
    return size
