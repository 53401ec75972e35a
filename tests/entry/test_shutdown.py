"""Tests the shutdown of a worker: the order of its steps, and steps that do not end."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import pytest

from tollkeeper.core.errors import Unavailable
from tollkeeper.entry import shutdown
from tollkeeper.entry.shutdown import shut_down
from tollkeeper.http.http_server import HttpServer

_IN_ORDER = [
    "accepts no more",
    "calls end",
    "requests end",
    "the last calls end",
    "books are written",
    "chores stop",
    "signs off",
]


@dataclass
class Process:
    """All parts of a worker that the shutdown ends. They record their steps. The step `stuck` never ends."""

    stuck: str = ""
    everything_written: bool = True
    grace_s: float = 0.1
    database_away: bool = False
    diary: list[str] = field(default_factory=list)

    async def end(self) -> list[str]:
        await asyncio.wait_for(
            shut_down(
                *(_Server(self), _Calls(self), _Books(self), _Chores(self), _Lease(self)),
                grace_s=self.grace_s,
            ),
            60,
        )
        return self.diary

    async def note(self, step: str) -> None:
        # Because of this pause, a step for which the shutdown does not wait is recorded too late.
        await asyncio.sleep(0)
        if step == self.stuck:
            await asyncio.Event().wait()
        self.diary.append(step)


@dataclass
class _Part:
    process: Process


class _Server(_Part, HttpServer):
    def stop_accepting(self) -> None:
        self.process.diary.append("accepts no more")

    async def drain(self, grace_s: float) -> None:
        assert grace_s > 0
        await self.process.note("requests end")


class _Calls(_Part):
    async def drain(self, grace_s: float) -> None:
        await self.process.note("calls end" if grace_s else "the last calls end")


class _Books(_Part):
    async def drain(self, deadline_s: float) -> bool:
        assert deadline_s > 0
        await self.process.note("books are written")
        return self.process.everything_written


class _Chores(_Part):
    async def stop(self) -> None:
        await self.process.note("chores stop")


class _Lease(_Part):
    async def sign_off(self) -> None:
        if self.process.database_away:
            raise Unavailable
        await self.process.note("signs off")


async def test_everything_in_its_turn() -> None:
    assert await Process().end() == _IN_ORDER


async def test_who_holds_something_does_not_sign_off() -> None:
    assert await Process(everything_written=False).end() == _IN_ORDER[:-1]


async def test_a_database_that_is_away_is_no_failure() -> None:
    assert await Process(database_away=True).end() == _IN_ORDER[:-1]


@pytest.mark.parametrize("stuck", _IN_ORDER[1:])
async def test_a_step_that_never_ends_keeps_no_other_waiting(
    stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (name for name in vars(shutdown) if name.endswith("_S")):
        monkeypatch.setattr(shutdown, name, 0.05)
    expected = [step for step in _IN_ORDER if step != stuck]
    if stuck in ("books are written", "chores stop"):
        # A worker that may have unwritten costs, or may send heartbeats, does not sign off.
        expected.remove("signs off")
    assert await Process(stuck=stuck).end() == expected


async def test_the_supervisor_waits_for_the_longest_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor must not kill a worker during an orderly shutdown. In this test, calls use the whole
    grace period, so that none of it is left for writing costs."""
    for name in (name for name in vars(shutdown) if name.endswith("_S")):
        monkeypatch.setattr(shutdown, name, getattr(shutdown, name) / 100)
    given: list[float] = []
    run_step = shutdown._run_step

    async def note_deadline(step: str, seconds: float, work: Awaitable[bool | None]) -> bool:
        given.append(seconds)
        return await run_step(step, seconds, work)

    monkeypatch.setattr(shutdown, "_run_step", note_deadline)
    grace_s = 0.2
    await Process(stuck="calls end", grace_s=grace_s).end()
    assert len(given) == len(_IN_ORDER) - 1
    assert sum(given) == pytest.approx(shutdown.longest_shutdown_s(grace_s))
