"""`truncation: auto`: what is left of a conversation that is too long for its model."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import Role, Turn
from tollkeeper.domain.prompt_size import measure_prompt
from tollkeeper.services.calls.token_counting import TOKENIZER_TIMEOUT_S
from tollkeeper.services.use_cases import Services

# Turns that are left out together, by their places.
_Group = list[int]


async def truncated(services: Services, call: Call) -> Call:
    """The call without the oldest turns that do not fit. Instructions stay, so does the last
    group of turns.

    The estimate errs high, so only what it finds too long is counted: half of the groups, then
    half of the rest, where the backend has a tokenizer."""
    room = call.model.context_length - call.output_tokens_max
    if measure_prompt(call.prompt).guess() <= room:
        return call
    groups = _groups(call.prompt.turns)
    deadline = asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
    fewest, most = 0, max(0, len(groups) - 1)
    while fewest < most:
        half = (fewest + most) // 2
        shorter = _without(call, groups[:half])
        size = await services.token_counting.prompt_tokens(shorter, deadline)
        if size <= room:
            most = half
        else:
            fewest = half + 1
    return _without(call, groups[:fewest])


def _groups(turns: Sequence[Turn]) -> list[_Group]:
    """Oldest first. An answer and the outputs of its calls are one; instructions are in none."""
    groups: list[_Group] = []
    for at, turn in enumerate(turns):
        if turn.role is Role.TOOL and groups:
            groups[-1].append(at)
        elif turn.role not in (Role.SYSTEM, Role.DEVELOPER):
            groups.append([at])
    return groups


def _without(call: Call, groups: Sequence[_Group]) -> Call:
    dropped = {at for group in groups for at in group}
    kept = tuple(turn for at, turn in enumerate(call.prompt.turns) if at not in dropped)
    return replace(call, prompt=call.prompt.with_turns(kept))
