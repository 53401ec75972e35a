"""Runs one inference call from its arrival to its end: computes its maximum usage, holds (reserves)
its maximum cost, lets the policies judge the request, sends the call to the backend, delivers the
answer, and settles (charges) the cost. The state of the call is stored in its tab (`Tab`).

A call runs in the task of its request, and the server never cancels this task. If the client
disconnects or the process stops, the tab ends the current wait of the call. So every call reaches
the code that resolves its hold and records the call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter_ns
from typing import Protocol, TypeAlias

from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    PolicyDenied,
    ProviderRejected,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Call
from tollkeeper.domain.judging import context_of
from tollkeeper.domain.policy import Direction, Mode
from tollkeeper.domain.policy_set import NO_POLICIES, policies_judging
from tollkeeper.domain.transcript import Transcript, transcript
from tollkeeper.domain.usage import Usage
from tollkeeper.runtime.large_requests import run_in_thread
from tollkeeper.services.calls.admission import Admission
from tollkeeper.services.calls.plans import Plan
from tollkeeper.services.calls.recorder import CallRecorder
from tollkeeper.services.calls.response_gate import ResponseGate
from tollkeeper.services.calls.running_calls import InferenceLimits, RunningCalls
from tollkeeper.services.calls.tab import SETTLEMENT_S_MIN, AnswerSink, SettlementState, Tab
from tollkeeper.services.calls.token_counting import TokenCounting, tokenizer_deadline
from tollkeeper.services.overload import OverloadGate
from tollkeeper.services.policies.checks import Evidence, JudgedContent, PolicyChecks
from tollkeeper.services.policies.policies import Policies

# The backend client enforces the deadline itself, because it knows whether the provider may have
# charged by then. This module ends the call this much later, if the backend client has not ended it
# or if the API client reads too slowly.
_DEADLINE_SLACK_S = 0.5
# HTTP statuses of errors that the client causes. A call that fails with one of these statuses before
# money is held counts as a refused call of its project. An invalid key (401) is not included: calls
# with an invalid key must not use up the limit of the project's valid keys.
_CLIENT_ERRORS = frozenset({400, 402, 403, 404, 409, 413, 422, 429, 501})
# The states that every call has. Reading them from the enum takes six times as long.
_UNSETTLED, _SETTLED = SettlementState.UNSETTLED, SettlementState.SETTLED
# After these errors, the gateway stops reading an answer that its backend goes on writing: a policy denied
# the answer or could not judge it, or the backend was silent for too long.
_STOPS_READING = (PolicyDenied, Unavailable, DeadlineExceeded)
_WITHHELD = "The backend refused the request. Its message is not shown, because a policy judges the answers."
_IMPOSSIBLE_USAGE = "the backend's report of usage cannot be true"
_UNKNOWN_PROMPT_SIZE = "no usage was reported, and the size of media or searches is not known"
_UNREAD_REST = "the backend bills the whole answer, of which the gateway has read only a part"
_GATEWAY_FAILED = "the gateway failed during the call"


# The HTTP status and the error code that the client gets, and the error's place and reason for the
# record. Only errors of the gateway's own types have the last two.
ErrorValues: TypeAlias = tuple[int, str, str | None, str | None]


class CallSource(Protocol):
    """Gives a call access to its HTTP request."""

    # Whether the request has started a call. The request log leaves the log line of such a request to
    # the recorder of calls.
    is_call: bool

    @property
    def operation(self) -> str: ...

    @property
    def on_disconnect(self) -> Callable[[Callable[[], None]], None]:
        """Returns a function that registers a callback for the client's disconnect."""
        ...

    def error_values(self, error: BaseException) -> ErrorValues:
        """Returns what is recorded about this error."""
        ...


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
        # Tells whether this process runs calls of other owners (organizations) than a given one.
        self.serves_others = self._running.serves_others

    async def infer(self, call: Call, plan: Plan, sink: AnswerSink, source: CallSource) -> Tab:
        """Runs the call to its end. Raises domain errors, even after the sink (the receiver of the
        answer) has got events. The request handler must not cancel this coroutine. The handler
        reports a disconnect through `source.on_disconnect`, and the call then ends early."""
        tab = self._running.begin(call, plan, sink, source.operation)
        try:
            source.is_call = True
            if self._recorder.tracer is not None:
                self._recorder.started(tab)
            source.on_disconnect(partial(self._running.abandon, tab))
            if call.policy_ids:
                # Raises NotFound if the call names a policy that is not published. `_judge_request`
                # checks this again; the early check avoids a hold for a call that must fail.
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
            # First, so that not even an error of the recorder leaves the call among the running calls.
            self._running.end(tab)
            self._recorder.ended(tab)
        return tab

    async def drain(self, grace_s: float) -> None:
        """Waits up to `grace_s` for the running calls to end, then stops and settles the remaining
        calls."""
        await self._running.drain(grace_s)

    @property
    def running(self) -> int:
        return len(self._running)

    async def _counted_tokens(self, tab: Tab) -> int | None:
        """Returns the count of the backend's tokenizer, or None if there is no count."""
        if not await self._token_counting.should_count(tab.call):
            return None
        tab.tokenizer_asked = True
        # The process does not work on the call while the backend counts.
        tab.owner_calls.waiting += 1
        try:
            return await self._token_counting.counted_tokens(tab.call, tokenizer_deadline())
        finally:
            tab.owner_calls.waiting -= 1

    async def _judge_request(self, tab: Tab) -> ResponseGate | None:
        """Lets the judge (the model that answers policy questions) check the request against the
        policies that were in force at admission. Returns a gate for the answer if a policy applies
        to the answer, or if the check of the request is still running; otherwise None."""
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
            # Segments let a stream start early. An answer that is not streamed is judged once, at
            # its end.
            segment_characters=self._limits.segment_characters if call.streamed else 0,
            context=context,
            request_check=request_check,
        )

    async def _deliver(self, tab: Tab, gate: ResponseGate | None = None) -> None:
        """Sends the call to the backend, and delivers the answer until it is complete."""
        if tab.ends_by is not None:
            # The client has disconnected or the gateway is stopping. The call has not been sent
            # yet, and sending it would only cost money.
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
        """Resolves the hold and waits until the ledger has written the result: settled (charged),
        released (free) or unsettled (the cost is unknown). The ledger receives the result before
        the first `await` and retries while the database is down, so neither a cancellation nor a
        timeout can lose the result. Raises SettlementLate if the answer is complete but the result
        was not written in time."""
        # The state stays UNSETTLED until the ledger has written the settlement.
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
        """Resolves the hold of a failed call that is not charged for usage. Returns the cost (None if
        nothing is charged), and a future that is done when the ledger has written the result."""
        admission = self._admission
        if not isinstance(error, TollkeeperError):
            return None, admission.leave_unsettled(tab, _GATEWAY_FAILED)
        if error.charged:
            # The backend may have generated an answer of unknown size.
            return None, admission.leave_unsettled(tab, error.reason)
        tab.state = SettlementState.RELEASED
        return None, admission.release(tab)


def _charge_of_failed(tab: Tab, error: BaseException) -> Usage | None:
    """Returns the usage that a failed call is charged for: the delivered output or the reported usage.
    Returns None if there is neither, or if the cost is unknown. Corrects `error.charged` if the meter
    shows that the backend charges for the call, or that it does not."""
    meter = tab.meter
    if not isinstance(error, TollkeeperError):
        # The gateway itself failed, so it is unknown how much the backend has generated.
        return None
    if error.tokens_are_free and not (tab.may_cost_fees or meter.reports_fees):
        error.charged = False
    elif meter.has_begun or meter.usage is not None or meter.reported_impossible_usage:
        error.charged = True
        meter.broke_off = not (tab.is_read or error.backend_ended_answer)
        return meter.charge()
    return None


def _unknown_cost(tab: Tab, error: BaseException | None) -> str | None:
    """Returns the reason why the cost of an estimated usage is unknown; None if it is known."""
    meter = tab.meter
    if meter.reported_impossible_usage:
        return _IMPOSSIBLE_USAGE
    has_stopped_reading = tab.has_ended_early or isinstance(error, _STOPS_READING)
    if meter.broke_off and tab.is_billed_to_end and has_stopped_reading:
        return _UNREAD_REST
    return _UNKNOWN_PROMPT_SIZE if meter.prompt_is_unknown else None


async def _deliver_judged(tab: Tab, gate: ResponseGate) -> None:
    """Sends the call to the backend, and passes the answer to the gate."""
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
    """Writes the transcript of a large request when a monitoring policy first needs it. The call does not
    wait for this."""

    def __init__(self, call: Call, context_characters: int) -> None:
        self._call = call
        self._context_characters = context_characters
        self._writing: asyncio.Task[Transcript] | None = None

    async def content(self) -> JudgedContent:
        written = await self._transcript()
        return JudgedContent(self._call.organization_id, written.text, written.unread)

    async def context(self) -> str:
        """Returns the end of the request, for the judgement of the answer."""
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
            # A later attempt may succeed. The task must not stay referenced, because its error refers to
            # this object, and the cycle would keep the prompt in memory.
            self._writing = None
            raise


def _judging_timed_out(tab: Tab) -> TollkeeperError:
    return _ended_before_dispatch() if tab.abandoned or tab.stopped else DeadlineExceeded()


def _policy_published_meanwhile() -> Unavailable:
    """Returns the error for a prompt that was already sent to the backend's tokenizer when a policy
    was published that must judge the prompt before it leaves the gateway."""
    return Unavailable(
        "A policy was published while this call was being admitted. Send the request again.",
        retry_after_s=1,
    )


def _ended_before_dispatch() -> Unavailable:
    return Unavailable("The call ended before it was sent to the backend.", retry_after_s=1)


def _ended_early(tab: Tab) -> BaseException:
    """Returns the error for a call that a timeout or `Tab.end_by` ended. If the call was sent, the
    backend may charge for it."""
    if tab.refusal is not None:
        if isinstance(tab.refusal, TollkeeperError):
            tab.refusal.charged = tab.sent
        return tab.refusal
    if tab.stopped:
        return Unavailable("The gateway is shutting down.", retry_after_s=1, charged=tab.sent)
    if tab.abandoned:
        return BackendFailed("The client disconnected.", charged=tab.sent)
    return DeadlineExceeded(charged=tab.sent)
