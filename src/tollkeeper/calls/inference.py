"""Runs a call from its arrival to its end.

It runs in the task of its request, which the server never cancels. If the client disconnects or the
process stops, the tab ends the call's current wait. So every call reaches the code that resolves
its hold and records it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter_ns
from typing import Protocol, TypeAlias

from tollkeeper.calls.admission import Admission
from tollkeeper.calls.plans import Plan
from tollkeeper.calls.recorder import CallRecorder
from tollkeeper.calls.response_gate import ResponseGate
from tollkeeper.calls.running_calls import InferenceLimits, RunningCalls
from tollkeeper.calls.tab import SETTLEMENT_S_MIN, AnswerSink, SettlementState, Tab
from tollkeeper.calls.token_counting import TokenCounting, tokenizer_deadline
from tollkeeper.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    PolicyDenied,
    ProviderRejected,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.core.inference import Call
from tollkeeper.core.runtime.large_requests import run_in_thread
from tollkeeper.core.runtime.overload import OverloadGate
from tollkeeper.core.usage import Usage
from tollkeeper.policies.checks import Evidence, JudgedContent, PolicyChecks
from tollkeeper.policies.judge.rule import context_of
from tollkeeper.policies.policies import Policies
from tollkeeper.policies.policy import Direction, Mode
from tollkeeper.policies.policy_set import NO_POLICIES, policies_judging
from tollkeeper.policies.texts.transcript import Transcript, transcript

# The backend client enforces the deadline, because it knows whether the provider may have charged
# by then. This is for when it doesn't, or the API client reads too slowly.
_DEADLINE_SLACK_S = 0.5
# The client's fault: failing with these before money is held counts as a refused call of the
# project. Not 401: invalid keys mustn't use up the limit of the valid ones.
_CLIENT_ERRORS = frozenset({400, 402, 403, 404, 409, 413, 422, 429, 501})
# Reading these from the enum takes six times as long.
_UNSETTLED, _SETTLED = SettlementState.UNSETTLED, SettlementState.SETTLED
# After these, the gateway stops reading while the backend goes on writing.
_STOPS_READING = (PolicyDenied, Unavailable, DeadlineExceeded)
_WITHHELD = "The backend refused the request. Its message is not shown, because a policy judges the answers."
_IMPOSSIBLE_USAGE = "the backend's report of usage cannot be true"
_UNKNOWN_PROMPT_SIZE = "no usage was reported, and the size of media or searches is not known"
_UNREAD_REST = "the backend bills the whole answer, of which the gateway has read only a part"
_GATEWAY_FAILED = "the gateway failed during the call"


# HTTP status, error code, place and reason. Only the gateway's own errors have the last two.
ErrorValues: TypeAlias = tuple[int, str, str | None, str | None]


class CallSource(Protocol):
    """The HTTP request of a call."""

    # The recorder logs the request if it has become a call, otherwise the request log does.
    is_call: bool

    @property
    def operation(self) -> str: ...

    @property
    def on_disconnect(self) -> Callable[[Callable[[], None]], None]:
        """Registers a callback."""
        ...

    def error_values(self, error: BaseException) -> ErrorValues: ...


class SettlementLate(Unavailable):
    """The cost of the call could not be written in time; it will be written as soon as possible."""


class Inference:
    def __init__(
        self,
        admission: Admission,
        token_counting: TokenCounting,
        limits: InferenceLimits,
        *,
        policies: Policies,
        checks: PolicyChecks,
        recorder: CallRecorder,
        overload: OverloadGate,
    ) -> None:
        self._admission = admission
        self.standing_refusals = admission.standing_refusals
        self._token_counting = token_counting
        self._limits = limits
        self._policies = policies
        self._checks = checks
        self._recorder = recorder
        self.overload = overload
        self._running = RunningCalls(limits, overload)
        # Whether there are running calls of organizations other than this one.
        self.serves_others = self._running.serves_others

    async def infer(self, call: Call, plan: Plan, sink: AnswerSink, source: CallSource) -> Tab:
        """Raises domain errors, even after the sink got events. Don't cancel this: report a
        disconnect through `source.on_disconnect`, and the call ends early."""
        tab = self._running.begin(call, plan, sink, source.operation)
        try:
            source.is_call = True
            if self._recorder.tracer is not None:
                self._recorder.started(tab)
            source.on_disconnect(partial(self._running.abandon, tab))
            if call.policy_ids:
                # Raises NotFound for an unpublished policy. `_judge_request` checks again; this
                # avoids a hold for a call that must fail.
                await self._policies.applying(call)
            counted = await self._counted_tokens(tab) if plan.asks_tokenizer else None
            await self._admission.hold(tab, counted)
            try:
                if tab.policies is not None or call.policy_ids:
                    await self._deliver(tab, await self._judge_request(tab))
                else:
                    await self._deliver(tab)
            except BaseException as error:
                await self._close(tab, error)
                raise
            await self._close(tab)
        except BaseException as error:
            values = source.error_values(error)
            tab.status, tab.error_code, tab.error_param, tab.error_message = values
            if tab.hold is None and tab.status in _CLIENT_ERRORS:
                self.standing_refusals.count_refused(call.project_id)
            raise
        finally:
            # First, so not even an error of the recorder leaves the call here.
            self._running.end(tab)
            self._recorder.ended(tab)
        return tab

    async def drain(self, grace_s: float) -> None:
        """After `grace_s`, stops and settles the calls that are left."""
        await self._running.drain(grace_s)

    @property
    def running(self) -> int:
        return len(self._running)

    async def _counted_tokens(self, tab: Tab) -> int | None:
        if not await self._token_counting.should_count(tab.call):
            return None
        tab.tokenizer_asked = True
        # We don't work on the call while the backend counts.
        tab.owner_calls.waiting += 1
        try:
            return await self._token_counting.counted_tokens(tab.call, tokenizer_deadline())
        finally:
            tab.owner_calls.waiting -= 1

    async def _judge_request(self, tab: Tab) -> ResponseGate | None:
        """Checks the request against the policies in force at admission. Returns a gate if the
        answer must be judged too, or the request's check is still running."""
        call = tab.call
        evidence = tab.evidence = Evidence()
        policies = (tab.policies or NO_POLICIES).applying(call.project_id, call.policy_ids)
        answer_policies = policies_judging(policies, Direction.RESPONSE)
        request_is_judged = any(policy.judges(Direction.REQUEST) for policy in policies)
        context_characters = self._checks.context_characters if answer_policies else 0
        request_check: asyncio.Task[None] | None = None
        context: str | Callable[[], Awaitable[str]] = ""
        if call.is_large and not any(policy.mode is Mode.ENFORCING for policy in policies):
            request = _WatchedRequest(call, context_characters)
            context = request.context
            self._checks.watch(policies, Direction.REQUEST, request.content, evidence)
            request_is_judged = False
        elif request_is_judged or context_characters:
            request_transcript = await _transcript(tab)
            context = context_of(request_transcript.text, context_characters)
        if request_is_judged:
            if (tab.tokenizer_asked or call.tokenizer_asked) and any(
                policy.enforces(Direction.REQUEST) for policy in policies
            ):
                raise _policy_published_meanwhile()
            content = JudgedContent(
                call.organization_id, request_transcript.text, request_transcript.unread
            )
            check_arguments = (policies, Direction.REQUEST, content, evidence)
            if self._limits.judges_in_parallel:
                request_check = self._checks.start_check(*check_arguments)
                if request_check is not None:
                    request_check.add_done_callback(tab.end_if_refused)
            else:
                try:
                    with tab.waiting_until(tab.deadline), tab.judging():
                        await self._checks.check(*check_arguments)
                except TimeoutError:
                    raise _judging_timed_out(tab) from None
        if not answer_policies and request_check is None:
            return None
        return ResponseGate(
            tab.sink,
            answer_policies,
            self._checks,
            evidence,
            organization_id=call.organization_id,
            # An answer that isn't streamed is judged once, at its end.
            segment_characters=self._limits.segment_characters if call.streamed else 0,
            context=context,
            request_check=request_check,
        )

    async def _deliver(self, tab: Tab, gate: ResponseGate | None = None) -> None:
        if tab.ends_by is not None:
            # The client is gone or the gateway is stopping, so sending it would only cost money.
            if gate is not None:
                gate.close()
            raise _ended_before_dispatch()
        tab.backend = tab.call.model.backend
        tab.dispatched_at = perf_counter_ns()
        tab.owner_calls.waiting += 1
        try:
            with tab.alarm.until(tab.deadline + _DEADLINE_SLACK_S):
                if gate is None:
                    await tab.plan.backend.answer(tab.call, tab, deadline=tab.deadline)
                else:
                    await _deliver_judged(tab, gate)
        except TimeoutError:
            raise _ended_early(tab) from None
        finally:
            tab.answered_at = perf_counter_ns()
            tab.owner_calls.waiting -= 1

    async def _close(self, tab: Tab, error: BaseException | None = None) -> None:
        """Resolves the hold and waits until the ledger has written that. The ledger gets it before
        the first `await` and retries while the database is down, so neither a cancellation nor a
        timeout can lose it. Raises SettlementLate if the answer is complete but this isn't written
        in time."""
        # Until the ledger has written the settlement.
        tab.state = _UNSETTLED
        charge = tab.charge = tab.meter.charge() if error is None else _charge_of_failed(tab, error)
        if charge is None:
            assert error is not None
            cost, resolution_written = self._close_uncharged(tab, error)
        elif charge.estimated and (reason := _unknown_cost(tab, error)):
            cost, resolution_written = None, self._admission.leave_unsettled(tab, reason)
        else:
            cost, resolution_written = self._admission.settle(tab, charge)
        wait_until = tab.alarm.now() + SETTLEMENT_S_MIN
        if wait_until < tab.deadline:
            wait_until = tab.deadline
        try:
            with tab.waiting_until(wait_until):
                await resolution_written
        except TimeoutError:
            if error is None:
                raise SettlementLate(charged=True) from None
            return
        if cost is not None:
            tab.cost_picousd = cost
            tab.state = _SETTLED
            if charge is not None:
                tab.charged = charge

    def _close_uncharged(
        self, tab: Tab, error: BaseException
    ) -> tuple[int | None, asyncio.Future[bool]]:
        """For a call that isn't charged for usage. The cost is None if nothing is charged."""
        admission = self._admission
        if not isinstance(error, TollkeeperError):
            return None, admission.leave_unsettled(tab, _GATEWAY_FAILED)
        if error.charged:
            # There may be an answer of unknown size.
            return None, admission.leave_unsettled(tab, error.reason)
        tab.state = SettlementState.RELEASED
        return None, admission.release(tab)


def _charge_of_failed(tab: Tab, error: BaseException) -> Usage | None:
    """What a failed call is charged for: the delivered output or the reported usage. None if
    there's neither or the cost is unknown. Corrects `error.charged` if the meter knows better."""
    meter = tab.meter
    if not isinstance(error, TollkeeperError):
        # Nobody knows how much the backend has generated.
        return None
    if error.tokens_are_free and not (tab.may_cost_fees or meter.reports_fees):
        error.charged = False
    elif meter.has_begun or meter.usage is not None or meter.reported_impossible_usage:
        error.charged = True
        meter.broke_off = not (tab.is_read or error.backend_ended_answer)
        return meter.charge()
    return None


def _unknown_cost(tab: Tab, error: BaseException | None) -> str | None:
    """None if an estimated usage's cost is known."""
    meter = tab.meter
    if meter.reported_impossible_usage:
        return _IMPOSSIBLE_USAGE
    has_stopped_reading = tab.has_ended_early or isinstance(error, _STOPS_READING)
    if meter.broke_off and tab.is_billed_to_end and has_stopped_reading:
        return _UNREAD_REST
    return _UNKNOWN_PROMPT_SIZE if meter.prompt_is_unknown else None


async def _deliver_judged(tab: Tab, gate: ResponseGate) -> None:
    tab.sink = gate
    try:
        await tab.plan.backend.answer(tab.call, tab, deadline=tab.deadline)
        tab.is_read = True
        await gate.finish()
    except ProviderRejected as exc:
        if not gate.is_enforcing:
            raise
        # The provider's error text is part of the answer, and no policy has judged it.
        withheld = ProviderRejected(_WITHHELD, charged=exc.charged)
        withheld.tokens_are_free = exc.tokens_are_free
        raise withheld from exc
    finally:
        gate.close()


async def _transcript(tab: Tab) -> Transcript:
    call = tab.call
    if not call.is_large:
        return transcript(call.prompt, call.model)
    try:
        with tab.waiting_until(tab.deadline):
            return await run_in_thread(tab.owner_calls.owner, transcript, call.prompt, call.model)
    except TimeoutError:
        raise _judging_timed_out(tab) from None


class _WatchedRequest:
    """Writes a large request's transcript when a monitoring policy first needs it. The call doesn't
    wait."""

    def __init__(self, call: Call, context_characters: int) -> None:
        self._call = call
        self._context_characters = context_characters
        self._writing: asyncio.Task[Transcript] | None = None

    async def content(self) -> JudgedContent:
        written = await self._transcript()
        return JudgedContent(self._call.organization_id, written.text, written.unread)

    async def context(self) -> str:
        if not self._context_characters:
            return ""
        return context_of((await self._transcript()).text, self._context_characters)

    async def _transcript(self) -> Transcript:
        if self._writing is None:
            call = self._call
            owner = call.organization_id.int
            writing = run_in_thread(owner, transcript, call.prompt, call.model)
            self._writing = asyncio.create_task(writing)
        try:
            return await self._writing
        except Unavailable:
            # A later attempt may succeed. And the task's error refers to this object, so the cycle
            # would keep the prompt in memory.
            self._writing = None
            raise


def _judging_timed_out(tab: Tab) -> TollkeeperError:
    return _ended_before_dispatch() if tab.abandoned or tab.stopped else DeadlineExceeded()


def _policy_published_meanwhile() -> Unavailable:
    """The backend's tokenizer already has the prompt, but the new policy must judge it before it
    leaves."""
    return Unavailable(
        "A policy was published while this call was being admitted. Send the request again.",
        retry_after_s=1,
    )


def _ended_before_dispatch() -> Unavailable:
    return Unavailable("The call ended before it was sent to the backend.", retry_after_s=1)


def _ended_early(tab: Tab) -> BaseException:
    """For a call that a timeout or `Tab.end_by` ended. Once it's sent, the backend may charge."""
    if tab.refusal is not None:
        if isinstance(tab.refusal, TollkeeperError):
            tab.refusal.charged = tab.sent
        return tab.refusal
    if tab.stopped:
        return Unavailable("The gateway is shutting down.", retry_after_s=1, charged=tab.sent)
    if tab.abandoned:
        return BackendFailed("The client disconnected.", charged=tab.sent)
    return DeadlineExceeded(charged=tab.sent)
