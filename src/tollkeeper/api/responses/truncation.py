"""How long the conversation of a Responses request is, and `truncation: auto`: what is left of one
that is too long for its model."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tollkeeper.api.call_fields import TOKENS_PER_IMAGE, ChatMessage, estimate_of
from tollkeeper.domain.inference import Call
from tollkeeper.services.calls.token_counting import TOKENIZER_TIMEOUT_S
from tollkeeper.services.use_cases import Services

# Messages that belong together, by their places.
_Turn = list[int]


def prompt_size(call: Call) -> int:
    """What the prompt takes at most. Of files nobody knows: all that fits."""
    if _parts(call)["file"]:
        return call.model.context_length
    return _estimate(call)


async def truncated(services: Services, call: Call) -> Call:
    """The call without the oldest turns that do not fit. Instructions stay, so does the last turn.

    The estimate errs high, so only what it finds too long is counted: half of the turns, then half
    of the rest, where the backend has a tokenizer."""
    room = call.model.context_length - call.output_tokens_max
    if _estimate(call) <= room:
        return call
    turns = _turns(call.fields["messages"])
    deadline = asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
    fewest, most = 0, max(0, len(turns) - 1)
    while fewest < most:
        half = (fewest + most) // 2
        shorter = _without(call, turns[:half])
        size = await services.token_counting.prompt_tokens(shorter, _estimate(shorter), deadline)
        if size <= room:
            most = half
        else:
            fewest = half + 1
    return _without(call, turns[:fewest])


def _estimate(call: Call) -> int:
    described = (call.fields.get("tools"), call.fields.get("response_format"))
    return estimate_of(call.fields["messages"], described) + TOKENS_PER_IMAGE * call.images


def _parts(call: Call) -> Counter[str]:
    """How many content parts there are of each kind."""
    contents = (message["content"] for message in call.fields["messages"])
    lists = (content for content in contents if isinstance(content, list))
    return Counter(part["type"] for content in lists for part in content)


def _turns(messages: Sequence[ChatMessage]) -> list[_Turn]:
    """Oldest first. An answer and the outputs of its calls are one; instructions are in none."""
    turns: list[_Turn] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool" and turns:
            turns[-1].append(at)
        elif message["role"] not in ("system", "developer"):
            turns.append([at])
    return turns


def _without(call: Call, turns: Iterable[_Turn]) -> Call:
    dropped = {at for turn in turns for at in turn}
    messages = call.fields["messages"]
    kept = [message for at, message in enumerate(messages) if at not in dropped]
    shorter = replace(call, fields={**call.fields, "messages": kept})
    # What was left out is not paid for.
    return replace(shorter, images=_parts(shorter)["image_url"])
