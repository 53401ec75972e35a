"""`truncation: auto`, which drops the oldest turns of a conversation too long for its model."""

from collections.abc import Sequence

from msgspec.structs import replace

from tollkeeper.calls.admission import measure
from tollkeeper.calls.token_counting import tokenizer_deadline
from tollkeeper.core.inference import Call
from tollkeeper.core.prompt import Role, Turn
from tollkeeper.core.prompt_size import measure_prompt
from tollkeeper.core.runtime.large_requests import run_in_thread
from tollkeeper.faces.use_cases import ApiServices

# Tokenizer calls for one request.
_COUNTS_MAX = 4
# Positions of turns that can only be dropped together.
_Group = list[int]


async def truncated(services: ApiServices, call: Call) -> Call:
    """Drops the oldest turns if the prompt is too long, but never instructions or the last group.

    The estimate tends to be too high, so a prompt that fits by it needs no exact count. Otherwise
    the backend's tokenizer counts the prompt with a few numbers of dropped groups, each chosen by
    the estimate and the counts so far, if there's a tokenizer and it may get the prompt before
    admission (`TokenCounting.should_count`). The result fits by a count or by the estimate, unless
    even the last group is too long. The search reads a long prompt many times, and waits for the
    thread of large requests before each, so that other organizations take turns with it.
    """
    tokens_max = call.model.context_length - call.output_tokens_max
    if (await measure(call)).guess() <= tokens_max:
        return call
    may_count = await services.token_counting.should_count(call)
    search = await run_in_thread(call.organization_id.int, _Cuts, call, tokens_max)
    await search.begin()
    deadline = tokenizer_deadline()
    for _ in range(_COUNTS_MAX if may_count else 0):
        dropped = await search.next_cut()
        if dropped is None:
            break
        counted = await services.token_counting.counted_tokens(search.without(dropped), deadline)
        if counted is None:
            break
        await search.learn(dropped, counted)
    return replace(search.without(search.best), tokenizer_asked=may_count)


class _Cuts:
    """A cut is how many of the oldest groups are dropped, and fits if the rest fits into the
    model's context. Cuts below `_fewest` don't. `best` is the smallest that fits by the estimate or
    a count so far, or the largest allowed (`_most`) if none does."""

    def __init__(self, call: Call, tokens_max: int) -> None:
        self._call = call
        self._tokens_max = tokens_max
        self._groups = _groups(call.prompt.turns)
        self._fewest = 0
        self._most = max(0, len(self._groups) - 1)
        # The latest exact count, and the estimate of the same prompt. 0 before the first.
        self._counted, self._estimated = 0, 0
        self.best = self._most

    async def begin(self) -> None:
        """Must be called first, and goes by the estimate."""
        self.best = await self._fitting_cut(0, self._most)

    def without(self, dropped: int) -> Call:
        return _without(self._call, self._groups[:dropped])

    async def next_cut(self) -> int | None:
        if self._fewest >= self.best:
            return None
        if self._estimated == 0:
            # First the longest prompt, because it shows best how far off the estimate is.
            return self._fewest
        return min(await self._fitting_cut(self._fewest, self.best), self.best - 1)

    async def learn(self, dropped: int, counted: int) -> None:
        if counted <= self._tokens_max:
            self.best = dropped
        else:
            self._fewest = dropped + 1
        self._counted, self._estimated = counted, max(1, await self._estimate(dropped))

    async def _fitting_cut(self, fewest: int, most: int) -> int:
        """The smallest that fits by the estimate, which the latest count corrects."""
        while fewest < most:
            middle = (fewest + most) // 2
            estimate = await self._estimate(middle)
            if self._estimated:
                estimate = estimate * self._counted // self._estimated
            if estimate <= self._tokens_max:
                most = middle
            else:
                fewest = middle + 1
        return fewest

    async def _estimate(self, dropped: int) -> int:
        return await run_in_thread(self._call.organization_id.int, self._measure, dropped)

    def _measure(self, dropped: int) -> int:
        return measure_prompt(self.without(dropped).prompt).guess()


def _groups(turns: Sequence[Turn]) -> list[_Group]:
    """An answer and the outputs of its calls are one group. Instructions are in none and stay."""
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
