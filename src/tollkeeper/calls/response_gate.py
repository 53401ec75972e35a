"""Holds back an answer until policies have judged it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from tollkeeper.calls.tab import AnswerSink
from tollkeeper.core.access import OrganizationId
from tollkeeper.core.inference import Batch, Delta, Event, Opened
from tollkeeper.core.runtime.large_requests import Value, is_large, read_value, run_in_thread
from tollkeeper.policies.checks import Evidence, JudgedContent, PolicyChecks
from tollkeeper.policies.policy import Direction, Mode
from tollkeeper.policies.policy_set import ActivePolicy
from tollkeeper.policies.texts.json_escapes import with_decoded_escapes
from tollkeeper.policies.texts.logprob_text import LogprobText
from tollkeeper.policies.texts.media_text import read_media
from tollkeeper.policies.texts.transcript import AnswerText

T = TypeVar("T")


class ResponseGate:
    """Holds back an answer until enforcing policies have judged it: after each segment of
    `segment_characters`, or once at the end if that's 0. Monitoring policies judge at the end, even
    if the answer is incomplete, and delay nothing."""

    def __init__(
        self,
        sink: AnswerSink,
        policies: Sequence[ActivePolicy],
        checks: PolicyChecks,
        evidence: Evidence,
        *,
        organization_id: OrganizationId,
        segment_characters: int,
        context: str | Callable[[], Awaitable[str]] = "",
        request_check: asyncio.Task[None] | None = None,
    ) -> None:
        """`context` is the end of the request, which the judge sees with the answer; if it's a
        function, it's called only when judging. `request_check` runs beside the backend, and no
        event passes before it ends."""
        self._sink = sink
        self._policies = policies
        self._enforcing = [policy for policy in policies if policy.mode is Mode.ENFORCING]
        self._checks = checks
        self._evidence = evidence
        self._organization_id = organization_id
        self._segment_characters = segment_characters
        self._context = context
        self._request_check = request_check
        self._text = AnswerText()
        # They add the first large image or log-probabilities and all that came later to the text.
        # Empty if an enforcing policy judges the answer.
        self._delayed_reads: list[Callable[[], None]] = []
        self._judged_length = 0
        self._held_events: list[Event] = []
        self._has_held_back = False
        self._is_finished = False

    async def take(self, batch: Batch) -> None:
        if self._policies:
            for event in batch:
                if isinstance(event, Delta):
                    self._text.add(event)
                    for image in event.images:
                        add_image = partial(self._text.add_image, event.choice)
                        await self._read(image, read_media, add_image)
                    if event.logprobs is not None:
                        await self._read_logprobs(event.choice, event.logprobs)
                elif isinstance(event, Opened) and event.prompt_logprobs is not None:
                    await self._read_logprobs(None, event.prompt_logprobs)
        if not self._enforcing and self._request_check is None:
            await self._sink.take(batch)
            return
        self._hold(batch)
        if self._should_judge_now():
            await self._judge_and_release(self._enforcing)

    def held_back(self) -> None:
        self._sink.held_back()

    def text_writer(self) -> None:
        """None: policies need the whole text as events."""

    async def finish(self) -> None:
        """The answer is complete."""
        await self._await_request_check()
        self._is_finished = True
        await self._judge_and_release(self._policies)

    def close(self) -> None:
        """Monitoring policies still judge what arrived of an incomplete answer."""
        if not self._is_finished and (
            self._text.length or self._text.unread or self._delayed_reads
        ):
            self._watch()
        if self._request_check is not None:
            self._checks.call_ended(self._request_check)

    @property
    def is_enforcing(self) -> bool:
        return bool(self._enforcing)

    async def _read_logprobs(self, choice: int | None, logprobs: msgspec.Raw) -> None:
        await self._read(logprobs, LogprobText, partial(self._text.add_logprobs, choice))

    async def _read(
        self, value: Value, read: Callable[[Value], T], add: Callable[[T], None]
    ) -> None:
        """Large values are read in a thread. If no verdict holds up the call, neither does the
        thread: from the first large value on, all are read when the answer is judged."""
        if not self._enforcing and (self._delayed_reads or is_large(value)):
            self._delayed_reads.append(lambda: add(read(value)))
        else:
            add(await read_value(self._organization_id.int, read, value))

    def _do_delayed_reads(self) -> None:
        for read_and_add in self._delayed_reads:
            read_and_add()

    async def _content(self) -> JudgedContent:
        if self._delayed_reads:
            await run_in_thread(self._organization_id.int, self._do_delayed_reads)
            self._delayed_reads.clear()
        context = self._context if isinstance(self._context, str) else await self._context()
        text = str(self._text)
        if "\\u" in text:
            text = await read_value(self._organization_id.int, with_decoded_escapes, text)
        return JudgedContent(self._organization_id, text, self._text.unread, context)

    def _watch(self) -> None:
        self._checks.watch(self._policies, Direction.RESPONSE, self._content, self._evidence)

    def _hold(self, batch: Batch) -> None:
        self._held_events += batch
        if not self._has_held_back:
            self._has_held_back = True
            self._sink.held_back()

    def _should_judge_now(self) -> bool:
        """A segment is complete, or, without enforcing policies, the request's check has ended."""
        if not self._enforcing:
            assert self._request_check is not None
            return self._request_check.done()
        unjudged_length = self._text.length - self._judged_length
        return 0 < self._segment_characters <= unjudged_length

    async def _await_request_check(self) -> None:
        if self._request_check is not None:
            # The check goes on if the call is cancelled here, because its verdicts are recorded
            # anyway.
            await asyncio.shield(self._request_check)
            self._request_check = None

    async def _judge_and_release(self, policies: Sequence[ActivePolicy]) -> None:
        await self._await_request_check()
        if policies and not self._enforcing:
            self._watch()
        elif policies:
            # Always from the beginning, so a segment boundary can't hide text from the judge.
            content = await self._content()
            await self._checks.check(policies, Direction.RESPONSE, content, self._evidence)
            self._judged_length = self._text.length
        if self._held_events:
            events, self._held_events = self._held_events, []
            await self._sink.take(events)
