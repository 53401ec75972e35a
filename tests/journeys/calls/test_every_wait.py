"""Tests that a call may be ended at each of its waits: its hold is resolved once, and nothing stays in use.

A call waits, for example, for its hold, for a connection, for the backend's answer, for its client and for
its settlement. Each test runs the same call several times, and ends it at another wait each time."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, LiteralString
from uuid import UUID

import httpx2
import pytest

from tests.support.scripted_gateway import COST, ScriptedGateway, eventually
from tests.support.tables import each
from tests.support.upstream import Verb, chat, chat_records, refuse, stream
from tollkeeper.calls.inference import Inference
from tollkeeper.calls.tab import Tab
from tollkeeper.core.inference import Call

_WAITS_MAX = 60
_Act = Callable[[Inference, Tab], object]
_GATEWAY_FAILED = "the gateway failed during the call"
_RECORDS: LiteralString = "SELECT count(*) FROM activity WHERE request_id = %s"


@pytest.fixture(scope="module")
def scripted_options() -> dict[str, Any]:
    """Returns settings with two connections: a connection that is not given back is soon missed."""
    return {"drain_s": 0.1, "backend": {"native_n": False, "connections": 2}}


def _disconnect(inference: Inference, tab: Tab) -> None:
    inference._running.abandon(tab)


def _disconnect_without_drain(inference: Inference, tab: Tab) -> None:
    inference._running.abandon(tab)
    tab.end_by(asyncio.get_running_loop().time())


def _stop(inference: Inference, tab: Tab) -> None:
    tab.stopped = True
    tab.end_by(asyncio.get_running_loop().time())


def _expire(inference: Inference, tab: Tab) -> None:
    tab.alarm.expire()


def _cancel(inference: Inference, tab: Tab) -> None:
    tab.alarm._task.cancel()


class _EndedCall(Generator[Any, Any, Tab]):
    """Replaces `Inference.infer`: acts on the call at one of its waits. Acts while the call waits or, with
    `at_end`, when the wait has ended but the call has not continued yet."""

    def __init__(self, inference: Inference, act: _Act, wait: int, *, at_end: bool) -> None:
        self._inference = inference
        self._act = act
        self._wait = wait
        self._at_end = at_end
        self.waits = 0
        self.request_id = ""

    async def infer(self, call: Call, *arguments: Any) -> Tab:
        self.request_id = call.request_id
        self._running = Inference.infer(self._inference, call, *arguments)
        return await self

    def __await__(self) -> Generator[Any, Any, Tab]:
        return self

    def send(self, value: Any) -> Any:
        return self._begin_wait(self._running.send(value))

    def throw(self, *error: Any) -> Any:
        return self._begin_wait(self._running.throw(*error))

    def _begin_wait(self, waiting: asyncio.Future[Any] | None) -> Any:
        self.waits += 1
        if self.waits == self._wait:
            self._end(waiting)
        return waiting

    def _end(self, waiting: asyncio.Future[Any] | None) -> None:
        (tab,) = self._inference._running._running
        if self._at_end and waiting is not None:
            waiting.add_done_callback(lambda _: self._act(self._inference, tab))
        else:
            asyncio.get_running_loop().call_soon(self._act, self._inference, tab)


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        (chat(), {}),
        (stream(chat_records(["a", "b", "c"]), pause_s=0.002), {"stream": True}),
        (stream(chat_records(usage=None)), {"stream": True}),
        (refuse(400), {}),
        (chat(), {"n": 3}),
    ],
    ids=["json", "stream", "no usage", "refused", "three completions"],
)
@each("at_end", [False, True])
@each("act", [_disconnect, _disconnect_without_drain, _stop, _expire, _cancel])
async def test_a_call_may_end_at_every_wait(
    scripted: ScriptedGateway,
    monkeypatch: pytest.MonkeyPatch,
    verb: Verb,
    fields: dict[str, Any],
    act: _Act,
    at_end: bool,
) -> None:
    for wait in range(1, _WAITS_MAX):
        ended = _EndedCall(scripted.gateway.services.inference, act, wait, at_end=at_end)
        sent_before = len(scripted.upstream.requests)
        scripted.upstream.play(verb)
        with monkeypatch.context() as patched:
            patched.setattr(scripted.gateway.services.inference, "infer", ended.infer)
            # A cancelled call closes the connection to its client.
            with contextlib.suppress(httpx2.TransportError):
                await scripted.chat(**fields)
        # Only a cancellation, which the server never does, counts as a failure of the gateway.
        may_fail = act is _cancel
        await _check_ended(scripted, ended.request_id, sent_before, may_fail=may_fail)
        if ended.waits < wait:
            break
    else:
        pytest.fail("the call does not end")
    await scripted.works()
    await scripted.balance()


async def _check_ended(
    scripted: ScriptedGateway, request_id: str, sent_before: int, *, may_fail: bool
) -> None:
    """Checks that the call is resolved or unsettled, recorded once, and uses nothing any more. The
    backend had received `sent_before` requests when the call began. It may read a request of the call
    only after the call has ended."""

    def sent() -> int:
        return len(scripted.upstream.requests) - sent_before

    services = scripted.gateway.services
    await eventually(lambda: services.inference.running == 0)
    await eventually(lambda: scripted.upstream.under_way == 0)
    await services.ledger.drain()
    entry = await scripted.entry(request_id)
    if entry is not None:
        assert entry.status != "held"
        if not may_fail:
            await eventually(lambda: sent() > 0 or entry.status == "released")
            assert entry.reason != _GATEWAY_FAILED
        await eventually(lambda: entry.cost in (0, sent() * COST) or entry.estimated)
    assert services.ledger.open_holds == 0
    assert services.inference.overload.owners == {}
    assert not services.inference._running._drains.taken
    assert not services.inference._running._long_drains.taken
    reports = services.backends["scripted"].health().reports
    assert [(report.calls, report.waiting) for report in reports] == [(0, 0)]
    await services.recorder.drain()
    services.recorder.flush()
    await services.activity.drain()
    assert await scripted.sql(_RECORDS, UUID(request_id)) == [(1,)]
