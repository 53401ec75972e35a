"""Tests that only a few pieces of work run in one turn of the event loop, and that owners take turns."""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from functools import partial

from tollkeeper.core.runtime.fair_queue import FairTurns

# The number of pieces of work in one turn of the event loop.
PER_TURN = 8


class Given:
    """Records the pieces of work that run in each turn of the event loop, in their order."""

    def __init__(
        self,
        owner_max: int | None = None,
        is_shared: Callable[[Hashable], bool] = lambda _owner: True,
        had_before: Mapping[Hashable, int] | None = None,
    ) -> None:
        self.work = FairTurns(PER_TURN, owner_max, is_shared, had_before or {})
        self.turns: list[list[str]] = [[]]

    def add(self, owner: str, count: int) -> None:
        for number in range(count):
            self.work.add(owner, partial(self._note, f"{owner} {number}"))

    def _note(self, what: str) -> None:
        self.turns[-1].append(what)

    async def turn(self) -> list[str]:
        """Returns the pieces of work that run in the next turn of the event loop."""
        self.turns.append([])
        await asyncio.sleep(0)
        return self.turns[-1]


async def test_few_results_are_given_at_once() -> None:
    given = Given()
    given.add("one", PER_TURN)
    assert given.turns == [[f"one {number}" for number in range(PER_TURN)]]
    assert len(given.work) == 0


async def test_many_results_are_given_in_several_turns() -> None:
    given = Given()
    given.add("one", 3 * PER_TURN + 1)
    found = given.turns[0] + [what for _ in range(3) for what in await given.turn()]
    assert [len(turn) for turn in given.turns] == [PER_TURN, PER_TURN, PER_TURN, 1]
    assert found == [f"one {number}" for number in range(3 * PER_TURN + 1)]
    # New work in the turn of the last piece gets only the rest of this turn.
    given.add("one", PER_TURN)
    assert len(given.turns[-1]) == PER_TURN
    assert len(await given.turn()) == 1
    assert await given.turn() == []
    given.add("one", PER_TURN)
    assert len(given.turns[-1]) == PER_TURN


async def test_who_has_had_some_of_every_turn_has_less_of_it() -> None:
    given = Given(owner_max=4, had_before={"crowd": 3})
    given.add("crowd", 10)
    given.add("one", 10)
    turns = [given.turns[0], await given.turn(), await given.turn()]
    assert [_count(turn, "crowd") for turn in turns] == [1, 1, 1]
    # In the first turn, work of the crowd was waiting already, so later work has to wait too.
    assert [_count(turn, "one") for turn in turns] == [0, 4, 4]


async def test_who_is_alone_has_all_of_a_turn() -> None:
    given = Given(owner_max=4, is_shared=lambda _owner: False, had_before={"crowd": 3})
    given.add("crowd", PER_TURN + 1)
    assert len(given.turns[0]) == PER_TURN
    assert len(await given.turn()) == 1


def _count(turn: list[str], owner: str) -> int:
    return sum(what.startswith(owner) for what in turn)


async def test_what_arrives_is_served_between_the_turns() -> None:
    given, loop = Given(), asyncio.get_running_loop()
    given.add("one", 10 * PER_TURN)
    left: list[int] = []
    ours, others = asyncio.Future[None](), 0

    def arrive() -> None:
        nonlocal others
        others += 1
        left.append(len(given.work))
        if given.work:
            loop.call_soon(arrive)
        else:
            ours.set_result(None)

    loop.call_soon(arrive)
    async with asyncio.timeout(20):
        await ours
    assert others >= 9
    assert left == sorted(left, reverse=True)


async def test_owners_take_turns() -> None:
    given = Given()
    given.add("flood", 100)
    given.add("quiet", 1)
    assert "quiet 0" in await given.turn()
    given.add("other", 2)
    assert {"other 0", "other 1"} <= {*await given.turn()}


async def test_who_asks_is_called_after_what_waits_now() -> None:
    given = Given()
    asked: list[int] = []

    def ask() -> None:
        given.work.call_after_waiting(lambda: asked.append(sum(map(len, given.turns))))

    ask()
    await given.turn()
    assert asked == [0], "nothing waits"
    given.add("one", 5 * PER_TURN)
    ask()
    given.add("one", 5 * PER_TURN)
    ask()
    for _ in range(12):
        await given.turn()
    assert asked[0] == 0
    # The callback runs one turn after the pieces that waited. Further pieces run in that turn.
    assert 5 * PER_TURN <= asked[1] <= 7 * PER_TURN
    assert asked[2] == 10 * PER_TURN


async def test_a_result_that_fails_to_be_given_does_not_stop_others() -> None:
    """The event loop reports the error, and the next turn runs the other pieces of work."""
    given, reported = Given(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: reported.append(found))

    def fail() -> None:
        raise ValueError("not given")

    given.add("one", PER_TURN)
    given.work.add("one", fail)
    given.add("one", 2)
    for _ in range(3):
        await given.turn()
    assert sum(map(len, given.turns)) == PER_TURN + 2
    assert len(reported) == 1
    assert len(given.work) == 0


async def test_one_owner_has_only_so_much_of_a_turn() -> None:
    given = Given(2, lambda owner: owner == "flood")
    given.add("flood", 10)
    given.add("quiet", 3)
    assert given.turns == [["flood 0", "flood 1"]]
    assert await given.turn() == ["flood 2", "quiet 0", "flood 3", "quiet 1", "quiet 2"]
    assert await given.turn() == ["flood 4", "flood 5"]
    given.add("quiet", 5)
    assert given.turns[-1] == ["flood 4", "flood 5"], "who comes later waits for a turn"
    found = await given.turn()
    assert [what for what in found if what.startswith("quiet")] == [f"quiet {n}" for n in range(5)]
    assert len(found) == 7


async def test_owners_beyond_the_turn_go_on_in_the_next_one() -> None:
    given = Given(1)
    for number in range(2 * PER_TURN + 1):
        given.add(f"owner {number}", 1)
    await given.turn()
    await given.turn()
    assert [len(turn) for turn in given.turns] == [PER_TURN, PER_TURN, 1]


async def test_work_that_is_taken_is_counted() -> None:
    given = Given()
    assert [given.work.take("one") for _ in range(PER_TURN + 1)] == [True] * PER_TURN + [False]
    given.add("one", 1)
    assert given.turns == [[]]
    assert len(await given.turn()) == 1
