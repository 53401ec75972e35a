"""Measures prompts without keeping the event loop from others."""

from functools import partial

from tollkeeper.domain.estimate import measure_text
from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt_size import PromptSize, measure_prompt, prompt_text
from tollkeeper.large_requests import beside_the_loop

# A longer text takes more than a few milliseconds, and one of unusual characters takes longer.
_LONG_TEXT = 128 << 10
_LONG_UNUSUAL_TEXT = 8 << 10


def measure_short(call: Call) -> PromptSize | None:
    """The size of a prompt with little text; None where `measure` has to be awaited."""
    prompt, by_bytes = call.prompt, call.model.token_bounds.text_by_bytes
    text = prompt_text(prompt)
    if len(text) > (_LONG_TEXT if text.isascii() else _LONG_UNUSUAL_TEXT):
        return None
    return measure_prompt(prompt, measure_text(text), by_bytes=by_bytes)


async def measure(call: Call) -> PromptSize:
    """The size of any prompt. A long text is estimated slice by slice."""
    by_bytes = call.model.token_bounds.text_by_bytes
    measured = partial(measure_prompt, by_bytes=by_bytes)
    return await beside_the_loop(call.organization_id.int, measured, call.prompt)
