"""Runs one call from top to bottom: compute its bounds, open the tab, judge, dispatch, deliver,
close the tab.

It runs in its request's task, which is never cancelled. A client's disconnect and the end of the
process reach it through the tab; it always runs to its end, where the tab is closed and the call is
recorded.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Call
from tollkeeper.domain.judging import context_of
from tollkeeper.domain.metering import Meter
from tollkeeper.domain.policy import Direction
from tollkeeper.domain.policy_set import EMPTY
from tollkeeper.domain.pricing import Bounds
from tollkeeper.domain.transcript import Transcript, transcript
from tollkeeper.runtime.large_requests import run_in_thread
from tollkeeper.services.calls.admission import Admission
from tollkeeper.services.calls.measuring import measure
from tollkeeper.services.calls.plans import Plan
from tollkeeper.services.calls.recorder import CallRecorder
from tollkeeper.services.calls.response_gate import ResponseGate
from tollkeeper.services.calls.running_calls import InferenceLimits, RunningCalls
from tollkeeper.services.calls.tab import AnswerSink, SettlementState, Tab
from tollkeeper.services.calls.token_counting import TokenCounting, tokenizer_deadline
from tollkeeper.services.overload import OverloadGate
from tollkeeper.services.policies.checks import JudgedContent, PolicyChecks
from tollkeeper.services.policies.policies import Policies

# A backend enforces the deadline itself and knows whether anything was charged by then. The call is
# ended from outside only if the backend does not, or if the client reads too slowly.
_DEADLINE_SLACK_S = 0.5
# Errors that the client caused before anything was held. An invalid key (401) is not among them:
# its calls must not use up the rate of the project's other keys.
_CLIENT_ERRORS = frozenset({400, 402, 403, 404, 409, 413, 422, 429, 501})
_WITHHELD = "The backend refused the request. Its message is not shown, because a policy judges the answers."
# The minimum time that an answer waits for its settlement, however late it is.
_SETTLEMENT_S_MIN = 5.0
_ABSURD = "the backend's report of usage cannot be true"
_UNKNOWN_PROMPT = "no usage was reported, and the size of media or searches is not known"
_OUR_FAULT = "the gateway failed during the call"


class CallSource(Protocol):
    """Provides the part of a request that its call needs."""

    @property
    def operation(self) -> str: ...

    @property
    def on_disconnect(self) -> Callable[[Callable[[], None]], None]:
        """Registers a callback for the client's disconnect."""
        ...

    def error_words(self, error: BaseException) -> tuple[int, str]:
        """Returns the status and code of an error for the client."""
        ...


class SettlementLate(Unavailable):
    """The cost of the call could not be written in time; it is written as soon as it can be."""


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
        self._token_counting = token_counting
        self._limits = limits
        self._policies = policies
        self._checks = checks
        self._recorder = recorder
        self.overload = overload
        self._running = RunningCalls(limits, overload)

    async def infer(self, call: Call, plan: Plan, sink: AnswerSink, source: CallSource) -> Tab:
        """Runs the call to its end. Raises domain errors, even after the sink has received events.
        The source must not cancel it: it reports a disconnect through `on_disconnect`, and the call
        then ends by itself."""
        tab = self._running.begin(call, plan, sink, source.operation)
        status, code = 200, None
        self._recorder.started(tab)
        source.on_disconnect(partial(self._running.abandon, tab))
        try:
            bounds = await self._bounds(tab)
            await self._admission.open(tab, bounds)
            try:
                gate = None
                if tab.policies is not None or call.policy_ids:
                    gate = await self._judge_request(tab)
                await self._deliver(tab, gate)
            except BaseException as error:
                await self._close(tab, error)
                raise
            await self._close(tab)
        except BaseException as error:
            status, code = source.error_words(error)
            if tab.hold is None and status in _CLIENT_ERRORS:
                self._admission.count_refused(call.project_id)
            raise
        finally:
            self._recorder.ended(tab, status, code)
            self._running.end(tab)
        return tab

    def require_rate(self, project_id: ProjectId) -> None:
        """Raises RateLimited if this process knows that the project has used up its rate: for
        requests whose body is not read yet."""
        self._admission.require_rate(project_id)

    async def drain(self, grace_s: float) -> None:
        """Lets running calls end within the grace period, then stops and settles them."""
        await self._running.drain(grace_s)

    @property
    def running(self) -> int:
        return len(self._running)

    def serves_others(self, owner: Hashable) -> bool:
        """Tells whether calls of another owner are in progress in this process."""
        return self._running.serves_others(owner)

    async def _bounds(self, tab: Tab) -> Bounds:
        """Returns the maximum usage of the call, and creates the meter for its actual usage."""
        call, plan = tab.call, tab.plan
        model = plan.model
        if call.policy_ids:
            # Admission checks this again. The early check avoids a hold for a wrong name.
            await self._policies.applying(call)
        is_counted = plan.asks_tokenizer and await self._token_counting.is_counted(call)
        size = (await measure(call)).sent_to(model)
        counted = None
        if is_counted:
            tab.tokenizer_asked = True
            counted = await self._token_counting.counted_tokens(call, tokenizer_deadline())
        # A tokenizer counts text only: media and template tokens are added to it.
        held_tokens = prompt_tokens = size.bound(model, counted)
        if size.web_searches or plan.holds_by_bytes:
            held_tokens = size.hold_bound(model, counted)
        copies = plan.backend.prompts_sent(call)
        is_text_only, audio_tokens = size.is_text_only, 0
        if not is_text_only:
            audio_tokens = copies * size.audio_bound(model, prompt_tokens)
        tab.meter = Meter(call, copies * prompt_tokens, copies, audio_tokens, is_text_only)
        output_tokens = call.output_tokens_held
        return Bounds(
            copies * held_tokens,
            call.choices,
            output_tokens,
            copies * size.images,
            copies * size.web_searches,
            audio_tokens,
            output_tokens if model.writes_audio else 0,
            model.writes_images,
            copies,
            call.asked_service_tier,
        )

    async def _judge_request(self, tab: Tab) -> ResponseGate | None:
        """Asks the policies of this call's admission about its request. Returns a gate for the
        answer if a policy judges the answer or has not judged the request yet."""
        call = tab.call
        policies = (tab.policies or EMPTY).applying(call.project_id, call.policy_ids)
        for_answer = tuple(policy for policy in policies if policy.judges(Direction.RESPONSE))
        is_judged = any(policy.judges(Direction.REQUEST) for policy in policies)
        context_characters = self._checks.context_characters if for_answer else 0
        verdict, context = None, ""
        if is_judged or context_characters:
            found = await _large_transcript(tab) if call.is_large else transcript(call.prompt)
            context = context_of(found.text, context_characters)
        if is_judged:
            if tab.tokenizer_asked and any(
                policy.enforces(Direction.REQUEST) for policy in policies
            ):
                raise _judged_too_late()
            content = JudgedContent(call.organization_id, found.text, found.unread)
            asked = (policies, Direction.REQUEST, content, tab.evidence)
            if self._limits.judges_beside:
                verdict = self._checks.start_check(*asked)
                if verdict is not None:
                    verdict.add_done_callback(tab.end_if_refused)
            else:
                try:
                    with (
                        tab.waiting_until(tab.deadline),
                        tab.judging(),
                        self.overload.waiting(tab.owner),
                    ):
                        await self._checks.check(*asked)
                except TimeoutError:
                    raise _too_late_to_judge(tab) from None
        if not for_answer and verdict is None:
            return None
        return ResponseGate(
            tab.sink,
            for_answer,
            self._checks,
            tab.evidence,
            organization_id=call.organization_id,
            # A client that gets the answer in one piece gains nothing from segments.
            segment_characters=self._limits.segment_characters if call.streamed else 0,
            context=context,
            request_verdict=verdict,
        )

    async def _deliver(self, tab: Tab, gate: ResponseGate | None) -> None:
        """Reads the answer to its proper end and delivers it."""
        if tab.unwanted:
            # Nothing has been sent, and no client waits for the answer, so it is not paid for.
            if gate is not None:
                gate.close()
            raise _not_dispatched()
        sink, meter, deadline, owner = gate or tab.sink, tab.meter, tab.deadline, tab.owner
        assert meter is not None
        tab.dispatched_at = time.perf_counter_ns()
        self.overload.pass_on(owner)
        try:
            backend_call = tab.backend_call = tab.plan.backend.open(tab.call, deadline=deadline)
            with tab.waiting_until(deadline + _DEADLINE_SLACK_S):
                async with backend_call as answer:
                    tab.served_by(answer)
                    async for batch in answer.batches:
                        is_first = tab.first_piece_at is None
                        if is_first:
                            tab.first_piece_at = time.perf_counter_ns()
                        meter.count(batch)
                        await sink.take(batch)
                        if is_first and gate is None:
                            # The stream has begun, so text can be relayed.
                            tab.relay_text(answer)
                if gate is not None:
                    await gate.finish()
        except TimeoutError:
            raise _ended_early(tab, sent=backend_call.sent) from None
        except ProviderRejected as exc:
            if gate is not None and gate.is_enforcing:
                # The provider's error text is part of the answer, and no policy has judged it.
                raise ProviderRejected(_WITHHELD, charged=exc.charged) from exc
            raise
        finally:
            self.overload.take(owner)
            tab.answered()
            if gate is not None:
                gate.close()

    async def _close(self, tab: Tab, error: BaseException | None = None) -> None:
        """Settles or releases the hold, or leaves it unsettled, and waits until the ledger has it.
        The ledger gets it before the first wait and writes it however long the database is down, so
        neither a cancellation nor a timeout can skip it. Raises SettlementLate if a complete answer
        has waited until the deadline."""
        meter, admission = tab.meter, self._admission
        assert meter is not None
        cost = None
        # The call is not settled until the ledger has the settlement.
        tab.state = SettlementState.UNSETTLED
        if error is not None and not isinstance(error, TollkeeperError):
            # An error of the gateway after dispatch: the backend may have done anything.
            written = admission.leave_unsettled(tab, _OUR_FAULT)
        elif error is None or meter.delivered or meter.usage is not None or meter.reported_nonsense:
            # The delivered output or the reported usage determines the cost.
            if error is not None:
                error.charged = True
            charge = tab.charge = meter.charge()
            if meter.reported_nonsense:
                written = admission.leave_unsettled(tab, _ABSURD)
            elif meter.prompt_is_unknown:
                written = admission.leave_unsettled(tab, _UNKNOWN_PROMPT)
            else:
                cost, written = admission.settle(tab, charge)
        elif error.charged:
            # The backend may have generated an answer of unknown size.
            written = admission.leave_unsettled(tab, error.message)
        else:
            cost, written = admission.release(tab)
            if cost is None:
                tab.state = SettlementState.RELEASED
        soonest = asyncio.get_running_loop().time() + _SETTLEMENT_S_MIN
        try:
            with tab.waiting_until(max(tab.deadline, soonest), slack_s=_SETTLEMENT_S_MIN):
                await written
        except TimeoutError:
            if error is None:
                raise SettlementLate(charged=True) from None
            return
        if cost is not None:
            tab.cost_picousd = cost
            tab.state = SettlementState.SETTLED


async def _large_transcript(tab: Tab) -> Transcript:
    try:
        with tab.waiting_until(tab.deadline):
            return await run_in_thread(tab.owner, transcript, tab.call.prompt)
    except TimeoutError:
        raise _too_late_to_judge(tab) from None


def _too_late_to_judge(tab: Tab) -> TollkeeperError:
    return _not_dispatched() if tab.unwanted else DeadlineExceeded()


def _judged_too_late() -> Unavailable:
    """The tokenizer got the prompt just before a policy was published that has to judge it
    first."""
    return Unavailable(
        "A policy was published while this call was being admitted. Send the request again.",
        retry_after_s=1,
    )


def _not_dispatched() -> Unavailable:
    return Unavailable("The call ended before it was sent to the backend.", retry_after_s=1)


def _ended_early(tab: Tab, *, sent: bool) -> BaseException:
    """Returns the reason for an early end. If the call was sent, the backend may charge."""
    if tab.refusal is not None:
        if isinstance(tab.refusal, TollkeeperError):
            tab.refusal.charged = sent
        return tab.refusal
    if tab.stopped:
        return Unavailable("The gateway is shutting down.", retry_after_s=1, charged=sent)
    if tab.abandoned:
        return BackendFailed("The caller left.", charged=sent)
    return DeadlineExceeded(charged=sent)
