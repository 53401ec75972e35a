"""The script of one call, read top to bottom: bound, reserve, judge, dispatch, deliver, resolve.

It runs in its request's task, which nobody cancels. The caller's leaving and the process's end reach
it as wishes; it always comes to its end, where the reservation is resolved and the call is recorded.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Protocol, TypeVar

import msgspec

from tollkeeper.backends.fallback import backend_for
from tollkeeper.backends.port import Backend
from tollkeeper.domain.access import ProjectId
from tollkeeper.domain.errors import (
    BackendFailed,
    DeadlineExceeded,
    ProviderRejected,
    TollkeeperError,
    Unavailable,
)
from tollkeeper.domain.inference import Call
from tollkeeper.domain.metering import Meter
from tollkeeper.domain.policy import Direction
from tollkeeper.domain.policy_set import EMPTY, ActivePolicy
from tollkeeper.domain.pricing import Bounds
from tollkeeper.domain.transcript import Transcript, transcript
from tollkeeper.domain.usage import Usage
from tollkeeper.large_requests import beside_the_loop
from tollkeeper.services.calls.measuring import measure
from tollkeeper.services.calls.recorder import CallRecorder
from tollkeeper.services.calls.response_gate import ResponseGate
from tollkeeper.services.calls.running import AnswerSink, RunningCall, SettlementState
from tollkeeper.services.calls.running_calls import InferenceLimits, RunningCalls
from tollkeeper.services.calls.token_counting import (
    ApplyingPolicies,
    TokenCounting,
    tokenizer_deadline,
)
from tollkeeper.services.ledger.admission import Admission, Settlement
from tollkeeper.services.overload import OverloadGate
from tollkeeper.services.policies.checks import JudgedContent, PolicyChecks

T = TypeVar("T")

# A backend keeps the deadline itself and knows whether anything was charged by then. Only where
# it does not keep it, or where the caller reads too slowly, the call is ended from outside.
_DEADLINE_SLACK_S = 0.5
# A call that ends so before anything is held for it is the caller's doing. A key that is not valid any
# more is not among them: whoever has it shall not use up the rate of the project's other keys.
_CALLERS_DOING = frozenset({400, 402, 403, 404, 409, 413, 422, 429, 501})
_WITHHELD = "The backend refused the request. Its message is not shown, because a policy judges the answers."
# How long an answer waits for its settlement at least, however late it is.
_SETTLEMENT_S_MIN = 5.0


class CallSource(Protocol):
    """The request behind a call, as far as the call needs to know it."""

    @property
    def operation(self) -> str: ...

    @property
    def on_disconnect(self) -> Callable[[Callable[[], None]], None]:
        """Registers what is to be done when the caller leaves."""
        ...

    def error_words(self, error: BaseException) -> tuple[int, str]:
        """The status and the code under which the caller sees an error."""
        ...


class JudgedRequest(msgspec.Struct, frozen=True):
    """A request that no policy denied, or whose verdict is on its way."""

    # Those that judge the answer.
    policies: tuple[ActivePolicy, ...] = ()
    verdict: asyncio.Task[None] | None = None


_UNJUDGED = JudgedRequest()


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """A call that came to its proper end. It is settled, unless what its backend reports cannot be
    true: then `usage` is our own count, and the reservation stays unsettled."""

    usage: Usage
    settlement: Settlement | None

    @property
    def cost_picousd(self) -> int | None:
        return None if self.settlement is None else self.settlement.cost_picousd


class SettlementLate(Unavailable):
    """The cost of the call could not be written in time; it is written as soon as it can be."""


class Inference:
    def __init__(
        self,
        admission: Admission,
        token_counting: TokenCounting,
        backends: Mapping[str, Backend],
        limits: InferenceLimits,
        *,
        policies: ApplyingPolicies,
        checks: PolicyChecks,
        recorder: CallRecorder,
        overload: OverloadGate,
    ) -> None:
        self._admission = admission
        self._token_counting = token_counting
        self._backends = backends
        self._limits = limits
        self._policies = policies
        self._checks = checks
        self._recorder = recorder
        self.overload = overload
        self._running = RunningCalls(limits, overload)

    async def infer(self, call: Call, sink: AnswerSink, source: CallSource) -> Outcome:
        """Runs the call to its end. Raises domain errors, also after the sink has taken events. The
        source must not cancel it: it reports through `on_disconnect` that the caller left, and the
        call then ends by itself."""
        running = self._running.begin(call, source.operation, sink)
        self._recorder.started(running)
        source.on_disconnect(lambda: self._running.abandon(running))
        try:
            outcome = await self._run(running)
        except BaseException as exc:
            status, code = source.error_words(exc)
            if running.reservation is None and status in _CALLERS_DOING:
                self._admission.count_refused(call.project_id)
            self._recorder.ended(running, status, code)
            raise
        else:
            self._recorder.ended(running, 200, None)
            return outcome
        finally:
            self._running.end(running)

    def require_rate(self, project_id: ProjectId) -> None:
        """Raises RateLimited where the project has nothing left of its rate, as far as this process
        knows: for requests whose body is not read yet."""
        self._admission.require_rate(project_id)

    async def drain(self, grace_s: float) -> None:
        """Lets running calls end within the grace, then stops and settles them."""
        await self._running.drain(grace_s)

    @property
    def running(self) -> int:
        return len(self._running)

    def serves_others(self, owner: Hashable) -> bool:
        """Whether calls of anybody else are in progress in this process."""
        return self._running.serves_others(owner)

    async def _run(self, running: RunningCall) -> Outcome:
        call = running.call
        backend = backend_for(call.model, self._backends)
        if call.policy_ids:
            # Admission checks this again. The early check avoids a hold for a wrong name.
            await self._policies.applying(call)
        is_counted = backend.counts_tokens and await self._token_counting.is_counted(call)
        size = (await measure(call)).sent_to(call.model)
        counted = None
        if is_counted:
            running.tokenizer_asked = True
            counted = await self._token_counting.counted_tokens(call, tokenizer_deadline())
        # A tokenizer counts text only: media and what a template adds come on top of it.
        prompt_tokens = size.bound(call.model, counted)
        held_tokens = prompt_tokens
        if size.web_searches or call.model.token_bounds.text_by_bytes:
            held_tokens = size.hold_bound(call.model, counted)
        copies = backend.prompts_sent(call)
        is_text_only = size.is_text_only
        audio_tokens = 0 if is_text_only else copies * size.audio_bound(call.model, prompt_tokens)
        output_tokens = call.output_tokens_held
        bounds = Bounds(
            prompt_tokens=copies * held_tokens,
            choices=call.choices,
            output_tokens_each=output_tokens,
            images=copies * size.images,
            web_searches=copies * size.web_searches,
            input_audio_tokens=audio_tokens,
            output_audio_tokens_each=output_tokens if call.model.writes_audio else 0,
            writes_images=call.model.writes_images,
            prompts=copies,
            service_tier=call.asked_service_tier,
        )
        reservation = await self._admission.reserve(call, bounds, running.alarm)
        meter = Meter(
            call, copies * prompt_tokens, copies, audio_tokens, prompt_is_counted=is_text_only
        )
        running.reserved(reservation, meter)
        try:
            is_judged = reservation.policies is not None or call.policy_ids
            judged = await self._judge_request(running) if is_judged else _UNJUDGED
            await self._deliver(running, backend, judged)
        except TollkeeperError as exc:
            with contextlib.suppress(SettlementLate):
                await _in_time(running, self._resolve_failure(running, exc))
            raise
        except BaseException:
            # A fault of ours after dispatch: nobody knows what the backend has done.
            reason = "the gateway failed during the call"
            with contextlib.suppress(SettlementLate):
                await _in_time(running, self._leave_unsettled(running, reason))
            raise
        await _in_time(running, self._settle(running))
        settled = running.settlement
        return Outcome(meter.charge().usage if settled is None else settled.usage, settled)

    async def _judge_request(self, running: RunningCall) -> JudgedRequest:
        """Asks the policies of this call's admission about its request."""
        call, reservation = running.call, running.reservation
        assert reservation is not None
        policies = (reservation.policies or EMPTY).applying(call.project_id, call.policy_ids)
        for_answer = tuple(policy for policy in policies if policy.judges(Direction.RESPONSE))
        if not any(policy.judges(Direction.REQUEST) for policy in policies):
            return JudgedRequest(for_answer)
        if running.tokenizer_asked and any(
            policy.enforces(Direction.REQUEST) for policy in policies
        ):
            raise _judged_too_late()
        found = await _large_transcript(running) if call.is_large else transcript(call.prompt)
        content = JudgedContent(call.organization_id, found.text, found.unread)
        asked = (policies, Direction.REQUEST, content, running.evidence)
        if self._limits.judges_beside:
            verdict = self._checks.start_check(*asked)
            if verdict is not None:
                verdict.add_done_callback(running.end_if_refused)
            return JudgedRequest(for_answer, verdict)
        try:
            with (
                running.waiting_until(running.deadline),
                running.judging(),
                self.overload.waiting(running.owner),
            ):
                await self._checks.check(*asked)
        except TimeoutError:
            raise _too_late_to_judge(running) from None
        return JudgedRequest(for_answer)

    async def _deliver(self, running: RunningCall, backend: Backend, judged: JudgedRequest) -> None:
        """Reads the answer to its proper end and hands it on."""
        if running.unwanted:
            # Nothing has left yet: nobody wants the answer any more, so nobody pays for it.
            if judged.verdict is not None:
                self._checks.call_ended(judged.verdict)
            raise _not_dispatched()
        gate = self._gate(running, judged)
        sink = gate or running.sink
        running.dispatched()
        self.overload.pass_on(running.owner)
        try:
            backend_call = running.backend_call = backend.open(
                running.call, deadline=running.deadline
            )
            with running.waiting_until(running.deadline + _DEADLINE_SLACK_S):
                async with backend_call as answer:
                    running.served_by(answer)
                    is_first = gate is None
                    async for batch in answer.batches:
                        running.count(batch)
                        await sink.take(batch)
                        if is_first:
                            # The stream has begun: text can follow by itself.
                            is_first = False
                            running.relay_text(answer)
                if gate is not None:
                    await gate.finish()
        except TimeoutError:
            raise _ended_early(running, sent=backend_call.sent) from None
        except ProviderRejected as exc:
            if gate is not None and gate.is_enforcing:
                # The provider's own words are part of what comes back, and no policy has judged them.
                raise ProviderRejected(_WITHHELD, charged=exc.charged) from exc
            raise
        finally:
            self.overload.take(running.owner)
            running.answered()
            if gate is not None:
                gate.close()

    def _gate(self, running: RunningCall, judged: JudgedRequest) -> ResponseGate | None:
        if not judged.policies and judged.verdict is None:
            return None
        return ResponseGate(
            running.sink,
            judged.policies,
            self._checks,
            running.evidence,
            organization_id=running.call.organization_id,
            # A caller that gets the answer in one piece gains nothing from segments.
            segment_characters=self._limits.segment_characters if running.call.streamed else 0,
            request_verdict=judged.verdict,
        )

    async def _resolve_failure(self, running: RunningCall, error: TollkeeperError) -> None:
        meter = running.meter
        assert meter is not None
        if meter.delivered or meter.usage is not None or meter.reported_nonsense:
            # The delivered output or the reported usage says what the call cost.
            error.charged = True
            await self._settle(running)
        elif error.charged:
            # The backend may have generated. Nothing tells how much, whoever ended the call.
            await self._leave_unsettled(running, error.message)
        else:
            await self._release(running)

    async def _settle(self, running: RunningCall) -> None:
        meter, reservation = running.meter, running.reservation
        assert meter is not None
        assert reservation is not None
        if meter.reported_nonsense:
            await self._leave_unsettled(running, "the backend's report of usage cannot be true")
            return
        if meter.prompt_is_unknown:
            reason = "no usage was reported, and the size of media or searches is not known"
            await self._leave_unsettled(running, reason)
            return
        # Until the ledger has it, nobody may call it settled.
        running.settlement_state = SettlementState.UNSETTLED
        charge = meter.charge()
        running.settlement = await self._admission.settle(
            reservation,
            charge.usage,
            estimated=charge.estimated,
            parts=charge.parts,
            backend=running.backend,
        )
        running.settlement_state = SettlementState.SETTLED

    async def _leave_unsettled(self, running: RunningCall, reason: str) -> None:
        assert running.reservation is not None
        running.settlement_state = SettlementState.UNSETTLED
        await self._admission.leave_unsettled(running.reservation, reason)

    async def _release(self, running: RunningCall) -> None:
        assert running.reservation is not None
        running.settlement_state = SettlementState.RELEASED
        await self._admission.release(running.reservation)


async def _large_transcript(running: RunningCall) -> Transcript:
    try:
        with running.waiting_until(running.deadline):
            return await beside_the_loop(running.owner, transcript, running.call.prompt)
    except TimeoutError:
        raise _too_late_to_judge(running) from None


def _too_late_to_judge(running: RunningCall) -> TollkeeperError:
    return _not_dispatched() if running.unwanted else DeadlineExceeded()


def _judged_too_late() -> Unavailable:
    """The tokenizer got the prompt just before a policy was published that has to judge it first."""
    return Unavailable(
        "A policy was published while this call was being admitted. Send the request again.",
        retry_after_s=1,
    )


def _not_dispatched() -> Unavailable:
    return Unavailable("The call ended before it was dispatched.", retry_after_s=1)


def _ended_early(running: RunningCall, *, sent: bool) -> BaseException:
    """Why the call did not come to its proper end. Where it was sent, the backend may charge."""
    if running.refusal is not None:
        if isinstance(running.refusal, TollkeeperError):
            running.refusal.charged = sent
        return running.refusal
    if running.stopped:
        return Unavailable("The gateway is shutting down.", retry_after_s=1, charged=sent)
    if running.abandoned:
        return BackendFailed("The caller left.", charged=sent)
    return DeadlineExceeded(charged=sent)


async def _in_time(running: RunningCall, resolving: Awaitable[T]) -> T:
    """Waits for the ledger until the deadline, and no longer. Raises SettlementLate. What is being
    written is written all the same, however long the database is away."""
    soonest = asyncio.get_running_loop().time() + _SETTLEMENT_S_MIN
    try:
        with running.waiting_until(max(running.deadline, soonest), slack_s=_SETTLEMENT_S_MIN):
            return await resolving
    except TimeoutError:
        raise SettlementLate(charged=True) from None
