"""`truncation: auto` drops the oldest turns of a conversation that is too long for its model."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from tollkeeper.domain.inference import Call
from tollkeeper.domain.prompt import Role, Turn
from tollkeeper.domain.prompt_size import measure_prompt
from tollkeeper.services.calls.token_counting import TOKENIZER_TIMEOUT_S
from tollkeeper.services.use_cases import Services

# The positions of turns that are dropped together.
_Group = list[int]


async def truncated(services: Services, call: Call) -> Call:
    """The call without the oldest turns that do not fit. Instructions and the last group of turns
    always stay.

    The estimate errs high, so a prompt that fits by the estimate needs no exact count. Otherwise a
    binary search finds how many groups to drop; it asks the backend's tokenizer where there is
    one."""
    tokens_max = call.model.context_length - call.output_tokens_max
    if measure_prompt(call.prompt).guess() <= tokens_max:
        return call
    await services.token_counting.require_admissible(call)
    groups = _groups(call.prompt.turns)
    deadline = asyncio.get_running_loop().time() + TOKENIZER_TIMEOUT_S
    fewest, most = 0, max(0, len(groups) - 1)
    while fewest < most:
        half = (fewest + most) // 2
        shorter = _without(call, groups[:half])
        size = await services.token_counting.prompt_tokens(shorter, deadline)
        if size <= tokens_max:
            most = half
        else:
            fewest = half + 1
    return _without(call, groups[:fewest])


def _groups(turns: Sequence[Turn]) -> list[_Group]:
    """Groups of turns, oldest first. An answer and the outputs of its calls are one group;
    instructions are in none."""
    groups: list[_Group] = []
    for position, turn in enumerate(turns):
        if turn.role is Role.TOOL and groups:
            groups[-1].append(position)
        elif turn.role not in (Role.SYSTEM, Role.DEVELOPER):
            groups.append([position])
    return groups


def _without(call: Call, groups: Sequence[_Group]) -> Call:
    dropped = {position for group in groups for position in group}
    kept = tuple(turn for position, turn in enumerate(call.prompt.turns) if position not in dropped)
    return replace(call, prompt=call.prompt.with_turns(kept))
